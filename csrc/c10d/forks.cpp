// See forks.hpp.
#include "c10d/forks.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

namespace taskd::comm {

namespace {

struct Children {
    std::mutex mutex;  // held during a fork, so that a child never finds the list half changed
    std::vector<std::function<void()>> renewals;
};

std::atomic<uint64_t> count{0};

Children& children();

void before_fork() {
    children().mutex.lock();
}

void after_fork_in_parent() {
    children().mutex.unlock();
}

void after_fork_in_child() {
    ++count;
    for (const auto& renew : children().renewals)
        renew();
    children().mutex.unlock();
}

Children& children() {
    static Children* const instance = [] {
        const int error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        if (error != 0)
            throw std::system_error(error, std::generic_category(), "cannot install the fork handlers");
        return new Children();
    }();
    return *instance;
}

}  // namespace

uint64_t forks() noexcept {
    return count;
}

void in_children(std::function<void()> renew) {
    Children& all = children();
    const std::lock_guard<std::mutex> held(all.mutex);
    all.renewals.push_back(std::move(renew));
}

}  // namespace taskd::comm
