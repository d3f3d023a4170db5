// See ending.hpp.
#include "c10d/ending.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "c10d/forks.hpp"

namespace taskd::comm {

namespace {

struct Bar {
    std::mutex mutex;
    std::condition_variable bell;
    size_t running = 0;
    std::atomic<bool> closed{false};
};

Bar& bar = one_per_process<Bar>();

}  // namespace

Stretch::Stretch() {
    if (bar.closed)
        return;
    const std::lock_guard<std::mutex> held(bar.mutex);
    if (bar.closed)
        return;
    ++bar.running;
    begun_ = true;
}

Stretch::~Stretch() {
    if (!begun_)
        return;
    const std::lock_guard<std::mutex> held(bar.mutex);
    --bar.running;
    bar.bell.notify_all();
}

bool end_stretches(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> held(bar.mutex);
    bar.closed = true;
    return bar.bell.wait_for(held, timeout, [] { return bar.running == 0; });
}

bool stretches_ended() noexcept {
    return bar.closed;
}

}  // namespace taskd::comm
