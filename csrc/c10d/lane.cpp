// See lane.hpp.
#include "c10d/lane.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace taskd::comm {

namespace {

// Asks again after this time: the system has no thread left, or a thread is already at work on a lane whose time is up.
constexpr std::chrono::milliseconds kAskAgain{100};

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
    const std::shared_ptr<Lane> lane = lane_.lock();  // outlives the lock below: a lane's destructor takes it, too
    if (!lane)
        return;
    std::string text = error ? text_of(error) : "";  // before the lock: a Python error may want the GIL
    Control::Lock lock = lane->control_.lock();
    if (finished_)
        return;
    finished_ = true;
    error_ = std::move(error);
    text_ = std::move(text);
    lane->landed(lock);
}

Lane::Lane(Control& control, Pool& pool, std::shared_ptr<Seat> seat, size_t width, std::shared_ptr<Observer> observer)
    : control_(control),
      pool_(pool),
      seat_(std::move(seat)),
      width_(width),
      observer_(std::move(observer)),
      watch_(Watch::instance()) {
    control_.add_listener(this);
}

Lane::~Lane() {
    control_.remove_listener(this);
}

void Lane::submit(std::shared_ptr<Task> task, Control::Lock& lock) {
    task->born_ = control_.turn(lock);
    queue_.push_back(std::move(task));
    if (owned_)
        return;
    if (queue_.size() == 1 && may_launch(lock) && !given_up(*queue_.front(), lock)) {
        owned_ = true;
        launch_next(lock);
        pass_on(lock);
        return;
    }
    if (!restless(lock) || call_server(lock))
        return;
    queue_.pop_back();
    throw std::system_error(EAGAIN, std::generic_category(), "an operation needs a thread, and the system has none");
}

void Lane::changed(const Control::Lock& lock) noexcept {
    if (!owned_ && restless(lock))
        call_server(lock);
}

Lane::Clock::time_point Lane::due(Clock::time_point now, const Control::Lock& lock) noexcept {
    const Clock::time_point next = next_look(lock);
    if (next > now)
        return next;
    // The thread that has the lane says the next time when it leaves.
    if (!owned_)
        call_server(lock);
    return now + kAskAgain;
}

bool Lane::under_way(const Control::Lock& lock) const {
    return std::any_of(flying_.begin(), flying_.end(), [&](const auto& task) { return !given_up(*task, lock); });
}

bool Lane::wait_idle(Control::Lock& lock, Clock::time_point deadline) {
    return idle_bell_.wait_until(lock, deadline, [&] { return idle(lock); });
}

// Called when an inner operation finished, on its thread, which may be a transport's own.
void Lane::landed(Control::Lock& lock) {
    if (owned_)
        return;
    owned_ = true;
    pass_on(lock);
}

// Ends the operations that have succeeded. If anything else can be done, a thread of the pool does it.
//
// Settling comes last. A thread that it wakes calls its next operation at once, and must find the lane free. Otherwise
// a thread of the pool would launch that operation, and would have to be woken first.
void Lane::pass_on(Control::Lock& lock) {
    std::vector<Verdict> ended;
    for (Verdict verdict; take_landed(verdict, lock); verdict = Verdict{}) {
        carry_out(verdict, lock);
        ended.push_back(std::move(verdict));
    }
    owned_ = false;
    if (restless(lock))
        call_server(lock);
    if (ended.empty())
        return;
    lock.unlock();
    for (Verdict& verdict : ended)
        settle(std::move(verdict));
    lock.lock();
}

bool Lane::take_landed(Verdict& verdict, const Control::Lock&) {
    for (auto place = flying_.begin(); place != flying_.end(); ++place) {
        const Flight& flight = *(*place)->flight_;
        if (!flight.finished_ || flight.error_ || !(*place)->quick())
            continue;
        verdict.task = std::move(*place);
        flying_.erase(place);
        return true;
    }
    return false;
}

// Whether a thread that takes the lane may find something to do.
bool Lane::restless(const Control::Lock& lock) const {
    for (const TaskPointer& task : flying_) {
        if (task->flight_->finished_ || task->flight_->number_ != seat_->number || given_up(*task, lock))
            return true;
    }
    if (queue_.empty())
        return false;
    const bool never_joined = control_.mode(lock) == Mode::kNormal && !seat_->inner;
    return never_joined || may_launch(lock) || given_up(*queue_.front(), lock);
}

bool Lane::call_server(const Control::Lock& lock) noexcept {
    std::shared_ptr<Lane> self = weak_from_this().lock();
    if (!self)
        return true;  // its destructor has begun, so it holds nothing
    owned_ = true;
    try {
        pool_.run([self = std::move(self)] { self->serve(); });
        return true;
    } catch (const std::exception&) {
        owned_ = false;  // no thread left in the system: try again
        watch_.expect(Clock::now() + kAskAgain, lock);
        return false;
    }
}

void Lane::serve() {
    Control::Lock lock = control_.lock();
    for (;;) {
        Verdict verdict;
        if (find_verdict(verdict, lock)) {
            end(std::move(verdict), lock);
        } else if (may_launch(lock)) {
            launch_next(lock);
        } else {
            break;
        }
    }
    owned_ = false;
    watch_.expect(next_look(lock), lock);
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

bool Lane::may_launch(const Control::Lock& lock) const {
    return control_.mode(lock) == Mode::kNormal && seat_->inner && !queue_.empty() &&
           (flying_.size() < width_ || seat_->inner->keeps_order());
}

void Lane::launch_next(Control::Lock& lock) {
    const TaskPointer task = std::move(queue_.front());
    queue_.pop_front();
    task->sequence_ = ++sequence_;
    control_.count(lock);
    task->launched_at_ = Clock::now();
    task->inner_ = seat_->inner;
    task->flight_ = std::make_shared<Flight>(weak_from_this(), seat_->number);
    task->announced_ = false;
    task->late_ = false;
    flying_.push_back(task);
    watch_.expect(next_look(*task), lock);
    const int64_t epoch = control_.epoch(lock);
    lock.unlock();
    if (observer_)
        observer_->entered(task->kind_number(), task->bytes(), task->sequence_, epoch);
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

void Lane::end(Verdict verdict, Control::Lock& lock) {
    carry_out(verdict, lock);
    lock.unlock();
    settle(std::move(verdict));
    lock.lock();
}

// Commits or drains, and counts the operation as over.
void Lane::carry_out(Verdict& verdict, Control::Lock& lock) {
    Task& task = *verdict.task;
    const uint64_t sequence = task.sequence_;
    if (verdict.ending == Ending::kDone)
        rhythm_.took(task.kind_number(), Clock::now() - task.launched_at_);
    ++ending_;
    lock.unlock();
    std::shared_ptr<void> remains;
    if (verdict.abandoned)
        remains = task.abandon();
    if (verdict.ending == Ending::kDrained)
        task.drain();
    if (observer_ && sequence > 0)
        observer_->left(sequence);
    if (verdict.ending == Ending::kDone) {
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
    // Before settling: a thread that waited for the operation may count on an idle lane.
    --ending_;
    if (idle(lock))
        idle_bell_.notify_all();
}

// Called without the lock. The lane may belong to another thread by now, so no member of it is touched.
void Lane::settle(Verdict verdict) {
    Task& task = *verdict.task;
    task.inner_.reset();
    task.flight_.reset();
    task.settle(verdict.ending, verdict.error);
}

}  // namespace taskd::comm
