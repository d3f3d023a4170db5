// See lane.hpp.
#include "lane.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

namespace taskd::comm {

namespace {

// An inner group has the same time limit and says more about what it waited for: let it speak first.
constexpr std::chrono::milliseconds kGrace{1000};

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool limited(std::chrono::milliseconds timeout) {
    // Beyond a year it is "no limit", and adding it to a time point could overflow.
    return timeout.count() > 0 && timeout < std::chrono::hours(24 * 365);
}

}  // namespace

std::string text_of(const std::exception_ptr& error) {
    if (!error)
        return "no error";
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& known) {
        return known.what();
    } catch (...) {
        return "an error of an unknown kind";
    }
}

void Flight::finish(std::exception_ptr error) noexcept {
    const std::shared_ptr<Lane> lane = lane_.lock();  // outlives the lock below: a lane's end takes it, too
    if (!lane)
        return;
    std::string text = error ? text_of(error) : "";  // before the lock: an error may be Python's and want the GIL
    const Control::Lock lock = lane->control_.lock();
    if (finished_)
        return;
    finished_ = true;
    error_ = std::move(error);
    text_ = std::move(text);
    lane->bell_.notify_all();
}

Lane::Lane(Control& control, Pool& pool, std::shared_ptr<Seat> seat, size_t width, std::shared_ptr<Observer> observer)
    : control_(control), pool_(pool), seat_(std::move(seat)), width_(width), observer_(std::move(observer)) {
    control_.add_bell(&bell_);
}

Lane::~Lane() {
    control_.remove_bell(&bell_);
}

void Lane::submit(std::shared_ptr<Task> task, const Control::Lock& lock) {
    task->born_ = control_.turn(lock);
    queue_.push_back(std::move(task));
    if (served_) {
        bell_.notify_all();
        return;
    }
    served_ = true;
    try {
        pool_.run([self = shared_from_this()] { self->serve(); });
    } catch (...) {
        served_ = false;
        queue_.pop_back();
        throw;
    }
}

bool Lane::wait_idle(Control::Lock& lock, Clock::time_point deadline) {
    return bell_.wait_until(lock, deadline, [&] { return idle(lock); });
}

void Lane::serve() {
    Control::Lock lock = control_.lock();
    for (;;) {
        Verdict verdict;
        if (find_verdict(verdict, lock)) {
            end(std::move(verdict), lock);
            return;
        }
        if (recall_flights(lock))
            continue;
        if (may_launch(lock)) {
            launch_next(lock);
            if (!lock.owns_lock())
                return;
            continue;
        }
        if (queue_.empty() && flying_.empty()) {
            served_ = false;
            bell_.notify_all();
            return;
        }
        wait(lock);
    }
}

bool Lane::find_verdict(Verdict& verdict, const Control::Lock& lock) {
    for (auto place = flying_.begin(); place != flying_.end(); ++place) {
        verdict = Verdict{};
        if (!judge_flying(**place, verdict, lock))
            continue;
        verdict.task = std::move(*place);
        flying_.erase(place);
        return true;
    }
    verdict = Verdict{};
    if (queue_.empty() || !judge_queued(*queue_.front(), verdict, lock))
        return false;
    verdict.task = std::move(queue_.front());
    queue_.pop_front();
    return true;
}

bool Lane::judge_given_up(const Task& task, Verdict& verdict, const Control::Lock& lock) const {
    if (task.born_.drains < control_.turn(lock).drains) {
        verdict.ending = Ending::kDrained;
        return true;
    }
    if (control_.aborted(lock) || seat_->aborted) {
        fail(task, verdict, seat_->aborted ? "the group was aborted" : control_.abort_reason(lock));
        return true;
    }
    return false;
}

bool Lane::judge_queued(Task& task, Verdict& verdict, const Control::Lock& lock) const {
    if (judge_given_up(task, verdict, lock))
        return true;
    if (control_.mode(lock) != Mode::kNormal || seat_->inner)
        return false;
    fail(task, verdict, "the group was never joined; call taskd's rebuild before operations are let go");
    return true;
}

bool Lane::judge_flying(Task& task, Verdict& verdict, const Control::Lock& lock) {
    const Flight& flight = *task.flight_;
    if (flight.finished_ && !flight.error_)
        return true;
    verdict.abandoned = !flight.finished_;
    if (judge_given_up(task, verdict, lock))
        return true;
    if (flight.number_ != seat_->number)
        return false;  // recall_flights() sees to it
    if (flight.finished_)
        return judge_failure(task, verdict, lock);
    if (!limited(task.timeout()) || Clock::now() < task.launched_at_ + task.timeout() + kGrace)
        return false;
    const std::string what = "no answer within " + std::to_string(task.timeout().count()) + " ms";
    announce(task, what, lock);
    fail(task, verdict, what);
    return true;
}

bool Lane::judge_failure(Task& task, Verdict& verdict, const Control::Lock& lock) {
    const std::exception_ptr& error = task.flight_->error_;
    if (!task.announced_) {
        announce(task, task.flight_->text_, lock);
        task.failed_at_ = control_.turn(lock);
    }
    verdict.ending = Ending::kFailed;
    if (!control_.attached(lock)) {
        verdict.error = error;
        return true;
    }
    // Held: whoever listens decides. Let go on the same inner group, or forgotten for too long, it fails after all.
    const bool let_go = task.failed_at_.resumes < control_.turn(lock).resumes;
    const bool late = limited(task.timeout()) && Clock::now() >= task.launched_at_ + task.timeout();
    if (!let_go && !late)
        return false;
    fail(task, verdict, task.flight_->text_);
    return true;
}

void Lane::fail(const Task& task, Verdict& verdict, const std::string& what) const {
    const std::string number = task.sequence_ == 0 ? "" : " #" + std::to_string(task.sequence_);
    verdict.ending = Ending::kFailed;
    verdict.error =
        task.error(task.kind() + number + " in group " + seat_->group + " failed: " + what +
                   ". If another rank died, restart the job or run it under taskd-run, which replaces the rank.");
}

void Lane::announce(Task& task, const std::string& text, const Control::Lock& lock) {
    if (task.announced_)
        return;
    task.announced_ = true;
    control_.announce({seat_->group, task.kind(), task.sequence_, text, control_.epoch(lock), now_ns()}, lock);
}

bool Lane::may_launch(const Control::Lock& lock) const {
    return control_.mode(lock) == Mode::kNormal && seat_->inner && !queue_.empty() && flying_.size() < width_;
}

void Lane::launch_next(Control::Lock& lock) {
    const TaskPointer task = std::move(queue_.front());
    queue_.pop_front();
    task->sequence_ = ++sequence_;
    task->launched_at_ = Clock::now();
    task->inner_ = seat_->inner;
    task->flight_ = std::make_shared<Flight>(weak_from_this(), seat_->number);
    task->announced_ = false;
    flying_.push_back(task);
    const int64_t epoch = control_.epoch(lock);
    lock.unlock();
    if (observer_)
        observer_->entered(*task, task->sequence_, epoch);
    std::exception_ptr refused;
    try {
        task->launch(*task->inner_, task->flight_);
    } catch (...) {
        refused = std::current_exception();
    }
    lock.lock();
    if (!refused)
        return;
    flying_.remove(task);
    end({task, Ending::kFailed, refused, false}, lock);
}

// Operations that fly on an inner group of the past come back to the front of the queue, in their order.
bool Lane::recall_flights(Control::Lock& lock) {
    std::vector<std::pair<TaskPointer, std::shared_ptr<Flight>>> recalled;
    std::vector<std::shared_ptr<Inner>> inners;
    for (auto place = flying_.rbegin(); place != flying_.rend(); ++place) {
        if ((*place)->flight_->number_ == seat_->number)
            continue;
        recalled.emplace_back(*place, std::move((*place)->flight_));
        inners.push_back(std::move((*place)->inner_));
    }
    if (recalled.empty())
        return false;
    for (const auto& [task, flight] : recalled) {
        flying_.remove(task);
        queue_.push_front(task);
        task->sequence_ = 0;
    }
    // The lane is ours until it is given away, so nobody else launches them meanwhile.
    lock.unlock();
    std::vector<std::shared_ptr<void>> remains;
    for (const auto& [task, flight] : recalled)
        remains.push_back(task->abandon());
    lock.lock();
    for (size_t i = 0; i < inners.size(); ++i)
        inners[i]->bury(std::move(remains[i]));
    lock.unlock();
    inners.clear();
    recalled.clear();
    lock.lock();
    return true;
}

// Commits or drains in order, gives the lane away, then settles. Returns with the lock released.
void Lane::end(Verdict verdict, Control::Lock& lock) {
    Task& task = *verdict.task;
    const uint64_t sequence = task.sequence_;
    lock.unlock();
    std::shared_ptr<void> remains;
    if (verdict.abandoned)
        remains = task.abandon();
    if (verdict.ending == Ending::kDrained)
        task.drain();
    if (verdict.ending == Ending::kDone) {
        if (observer_)
            observer_->left(sequence);
        try {
            task.commit();
        } catch (...) {
            verdict.ending = Ending::kFailed;
            verdict.error = std::current_exception();
        }
    }
    lock.lock();
    if (remains)
        task.inner_->bury(std::move(remains));
    bool given_away = true;
    if (queue_.empty() && flying_.empty()) {
        served_ = false;
        bell_.notify_all();
    } else {
        try {
            pool_.run([self = shared_from_this()] { self->serve(); });
        } catch (const std::exception&) {
            given_away = false;  // no thread left in the system: this one goes on when the callbacks have run
        }
    }
    lock.unlock();
    task.inner_.reset();
    task.flight_.reset();
    task.settle(verdict.ending, verdict.error);
    verdict.task.reset();
    if (!given_away)
        serve();
}

void Lane::wait(Control::Lock& lock) {
    Clock::time_point deadline = Clock::time_point::max();
    for (const TaskPointer& task : flying_) {
        if (!limited(task->timeout()))
            continue;
        const bool failed = task->flight_->finished_;
        deadline =
            std::min(deadline, task->launched_at_ + task->timeout() + (failed ? std::chrono::milliseconds(0) : kGrace));
    }
    if (deadline == Clock::time_point::max()) {
        bell_.wait(lock);
    } else {
        bell_.wait_until(lock, deadline);
    }
}

}  // namespace taskd::comm
