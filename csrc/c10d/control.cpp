// See control.hpp.
#include "c10d/control.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "c10d/forks.hpp"

namespace taskd::comm {

namespace {

// The thousandth failure of one incident is of no use, and a reader that never comes must not cost memory.
constexpr size_t kFailuresKept = 256;

}  // namespace

const char* name_of(Mode mode) noexcept {
    switch (mode) {
        case Mode::kNormal:
            return "NORMAL";
        case Mode::kParked:
            return "PARKED";
        case Mode::kDraining:
            return "DRAINING";
        case Mode::kSandbox:
            return "SANDBOX";
    }
    return "UNKNOWN";
}

Control& Control::instance() {
    // Never destroyed: threads that outlive main() still use it.
    static Control& control = one_per_process<Control>();
    return control;
}

[[maybe_unused]] static const Control& made_at_load = Control::instance();

void Control::check_epoch(int64_t epoch) const {
    if (epoch < epoch_) {
        throw std::invalid_argument("the epoch cannot go back from " + std::to_string(epoch_) + " to " +
                                    std::to_string(epoch) + "; drop the order, it belongs to an older repair.");
    }
}

void Control::change(Mode mode, int64_t epoch) {
    const Lock held = lock();
    check_epoch(epoch);
    epoch_ = epoch;
    mode_ = mode;
    if (mode == Mode::kDraining)
        ++turn_.drains;
    if (mode == Mode::kNormal) {
        ++turn_.resumes;
        aborted_ = false;
        abort_reason_.clear();
    }
    tell_all(held);
}

void Control::enter_sandbox() {
    const Lock held = lock();
    mode_ = Mode::kSandbox;
    tell_all(held);
}

void Control::abort(const std::string& reason) {
    const Lock held = lock();
    aborted_ = true;
    abort_reason_ = reason;
    tell_all(held);
}

void Control::set_attached(bool attached) {
    const Lock held = lock();
    attached_ = attached;
    tell_all(held);
}

void Control::set_rehearsing(bool rehearsing) {
    const Lock held = lock();
    rehearsing_ = rehearsing;
}

void Control::raise_epoch(int64_t epoch, const Lock&) {
    check_epoch(epoch);
    epoch_ = epoch;
}

void Control::add_listener(Listener* listener) {
    const Lock held = lock();
    listeners_.push_back(listener);
}

void Control::remove_listener(Listener* listener) {
    const Lock held = lock();
    listeners_.remove(listener);
}

std::chrono::steady_clock::time_point Control::ask_all(std::chrono::steady_clock::time_point now, const Lock& lock) {
    auto earliest = std::chrono::steady_clock::time_point::max();
    for (Listener* listener : listeners_)
        earliest = std::min(earliest, listener->due(now, lock));
    return earliest;
}

void Control::tell_all(const Lock& lock) {
    for (Listener* listener : listeners_)
        listener->changed(lock);
    changed_.notify_all();
}

Mode Control::wait_while_parked(std::chrono::milliseconds at_most) {
    Lock held = lock();
    changed_.wait_for(held, at_most, [this] { return mode_ != Mode::kParked; });
    return mode_;
}

void Control::announce(Failure failure, const Lock&) {
    if (failures_.size() < kFailuresKept)
        failures_.push_back(std::move(failure));
    if (event_fd_ < 0)
        return;
    const uint64_t one = 1;
    // The only possible error is EAGAIN (the counter is full). Then the reader was told long ago.
    [[maybe_unused]] const ssize_t written = ::write(event_fd_, &one, sizeof one);
}

std::vector<Failure> Control::take_events() {
    const Lock held = lock();
    uint64_t count = 0;
    if (event_fd_ >= 0) {
        [[maybe_unused]] const ssize_t taken = ::read(event_fd_, &count, sizeof count);
    }
    std::vector<Failure> taken;
    taken.swap(failures_);
    return taken;
}

int Control::event_fd() {
    const Lock held = lock();
    if (event_fd_ < 0) {
        event_fd_ = ::eventfd(failures_.empty() ? 0 : 1, EFD_CLOEXEC | EFD_NONBLOCK);
        if (event_fd_ < 0)
            throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
    }
    return event_fd_;
}

}  // namespace taskd::comm
