// The rules by which a lane ends an operation, holds it or waits for it. See lane.hpp.
//
// Does not: act on a verdict, or change anything but an operation's marks of what was announced.
#include "c10d/lane.hpp"

#include <algorithm>
#include <ctime>
#include <string>

namespace taskd::comm {

namespace {

// The inner group has the same time limit, and its error says more about what it waited for. So let it report first.
constexpr std::chrono::milliseconds kGrace{1000};

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool limited(std::chrono::milliseconds timeout) {
    // More than a year means "no limit", and adding it to a time point could overflow.
    return timeout.count() > 0 && timeout < std::chrono::hours(24 * 365);
}

}  // namespace

bool Lane::given_up(const Task& task, const Control::Lock& lock) const {
    return task.born_.drains < control_.turn(lock).drains || control_.aborted(lock) || seat_->aborted;
}

bool Lane::judge_given_up(const Task& task, Verdict& verdict, const Control::Lock& lock) const {
    if (task.born_.drains < control_.turn(lock).drains) {
        verdict.ending = Ending::kDrained;
        return true;
    }
    if (control_.aborted(lock) || seat_->aborted) {
        fail(task, verdict, seat_->aborted ? "the group was aborted" : control_.abort_reason(lock), lock);
        return true;
    }
    return false;
}

bool Lane::judge_queued(Task& task, Verdict& verdict, const Control::Lock& lock) const {
    if (judge_given_up(task, verdict, lock))
        return true;
    if (control_.mode(lock) != Mode::kNormal || seat_->inner)
        return false;
    fail(task, verdict, "the group was never joined; call taskd's rebuild before operations are let go", lock);
    return true;
}

bool Lane::judge_flying(Task& task, Verdict& verdict, const Control::Lock& lock) {
    const Flight& flight = *task.flight_;
    if (flight.finished_ && !flight.error_)
        return true;
    verdict.abandoned = !flight.finished_;
    if (judge_given_up(task, verdict, lock))
        return true;
    if (flight.number_ != seat_->number) {
        fail(task, verdict, "its inner group was replaced while it was under way", lock);
        return true;
    }
    return flight.finished_ ? judge_failure(task, verdict, lock) : judge_time(task, verdict, lock);
}

bool Lane::judge_time(Task& task, Verdict& verdict, const Control::Lock& lock) {
    const Clock::time_point now = Clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - task.launched_at_);
    if (limited(task.timeout()) && now >= task.launched_at_ + task.timeout() + kGrace) {
        const std::string words = "Timed out waiting " + std::to_string(task.timeout().count()) + "ms";  // as gloo says
        if (!task.announced_)
            announce(task, words, lock);
        fail(task, verdict, words, lock);
        return true;
    }
    if (task.late_ || now < next_look(task))
        return false;
    // This is suspicious, not wrong. A listener hears of it, and the operation goes on.
    task.late_ = true;
    if (control_.attached(lock))
        announce(task,
                 "no answer within " + std::to_string(waited.count()) + " ms, far longer than it ever took in this job",
                 lock);
    return false;
}

bool Lane::judge_failure(Task& task, Verdict& verdict, const Control::Lock& lock) {
    const std::exception_ptr& error = task.flight_->error_;
    if (!task.announced_) {
        task.announced_ = true;
        announce(task, task.flight_->text_, lock);
        task.failed_at_ = control_.turn(lock);
    }
    verdict.ending = Ending::kFailed;
    if (!control_.attached(lock)) {
        verdict.error = error;
        return true;
    }
    // The operation is held, and a listener decides. It fails after all if operations are let go on the same inner
    // group, or if its time limit passes.
    const bool let_go = task.failed_at_.resumes < control_.turn(lock).resumes;
    const bool late = limited(task.timeout()) && Clock::now() >= task.launched_at_ + task.timeout();
    if (!let_go && !late)
        return false;
    fail(task, verdict, task.flight_->text_, lock);
    return true;
}

void Lane::fail(const Task& task, Verdict& verdict, const std::string& what, const Control::Lock& lock) const {
    const std::string number = task.sequence_ == 0 ? "" : " #" + std::to_string(task.sequence_);
    verdict.ending = Ending::kFailed;
    verdict.error = task.error(
        task.kind() + number + " in group " + seat_->group + " failed: " + what +
        (control_.attached(lock)
             ? ". taskd has made no repair for it."
             : ". If another rank died, restart the job or run it under taskd-run, which replaces the rank."));
}

void Lane::announce(const Task& task, const std::string& text, const Control::Lock& lock) {
    control_.announce({seat_->group, task.kind(), task.sequence_, text, control_.epoch(lock), now_ns()}, lock);
}

// Returns when to look at an operation in flight again if nothing happens.
Lane::Clock::time_point Lane::next_look(const Task& task) const {
    Clock::time_point next = Clock::time_point::max();
    if (limited(task.timeout()))
        next = task.launched_at_ + task.timeout() + (task.announced_ ? std::chrono::milliseconds(0) : kGrace);
    const Rhythm::Nanoseconds late = task.late_ ? Rhythm::kUnknown : rhythm_.limit(task.kind_number());
    if (late != Rhythm::kUnknown && !task.announced_)
        next = std::min(next, task.launched_at_ + late);
    return next;
}

Lane::Clock::time_point Lane::next_look(const Control::Lock&) const {
    Clock::time_point next = Clock::time_point::max();
    for (const TaskPointer& task : flying_)
        next = std::min(next, next_look(*task));
    return next;
}

}  // namespace taskd::comm
