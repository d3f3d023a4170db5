// See watch.hpp.
#include "c10d/watch.hpp"

#include <algorithm>
#include <exception>

#include "c10d/forks.hpp"

namespace taskd::comm {

Watch& Watch::instance() {
    // Never destroyed: its thread is detached and may outlive main().
    static Watch& watch = one_per_process<Watch>(Control::instance(), Pool::instance());
    return watch;
}

[[maybe_unused]] static const Watch& made_at_load = Watch::instance();

void Watch::wake_at(Time when) {
    next_ = when;
    if (running_) {
        bell_.notify_one();
        return;
    }
    running_ = true;
    try {
        pool_.run([this] { run(); });
    } catch (const std::exception&) {
        running_ = false;  // no thread is left in the system; the next operation tries again
        next_ = Time::max();
    }
}

void Watch::run() {
    Control::Lock lock = control_.lock();
    while (next_ != Time::max()) {
        const Time now = std::chrono::steady_clock::now();
        if (now < next_) {
            bell_.wait_until(lock, next_);
            continue;
        }
        next_ = Time::max();
        // Asking may set a new time, through expect().
        const Time wanted = control_.ask_all(now, lock);
        next_ = std::min(next_, wanted);
    }
    running_ = false;
}

}  // namespace taskd::comm
