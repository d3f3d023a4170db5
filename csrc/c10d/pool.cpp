// See pool.hpp.
#include "c10d/pool.hpp"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>
#include <utility>

#include "c10d/forks.hpp"

namespace taskd::comm {

namespace {

constexpr std::chrono::seconds kIdleTime{5};

}  // namespace

Pool& Pool::instance() {
    // Never destroyed: its threads are detached and may outlive main().
    static Pool& pool = one_per_process<Pool>();
    return pool;
}

[[maybe_unused]] static const Pool& made_at_load = Pool::instance();

void Pool::run(std::function<void()> job) {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        if (idle_ > jobs_.size()) {
            jobs_.push_back(std::move(job));
            bell_.notify_one();
            return;
        }
        ++threads_;
    }
    start(std::move(job));
}

void Pool::start(std::function<void()> job) {
    // Python's signal handlers belong to the main thread: none of ours may take a signal from it.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread([this, job = std::move(job)]() mutable { serve(std::move(job)); }).detach();
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        const std::lock_guard<std::mutex> held(mutex_);
        --threads_;
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::serve(std::function<void()> job) {
    pthread_setname_np(pthread_self(), "taskd-guard");
    for (;;) {
        job();
        job = nullptr;  // what the job holds must not live while the thread idles
        std::unique_lock<std::mutex> held(mutex_);
        ++idle_;
        const bool given = bell_.wait_for(held, kIdleTime, [this] { return !jobs_.empty(); });
        --idle_;
        if (!given) {
            --threads_;
            return;
        }
        job = std::move(jobs_.front());
        jobs_.pop_front();
    }
}

size_t Pool::threads() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return threads_;
}

}  // namespace taskd::comm
