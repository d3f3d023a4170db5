// A lane: an ordered queue of operations over an inner group that may fail, hang, or be swapped in the middle.
//
// Why: a lane decides what happens to an operation: it is launched, committed, held, drained or failed. This depends on
// four modes, on swaps of the inner group and on a clock, and each of these may change at any moment. A lane knows no
// torch, so all of these races run under the thread sanitizer (tests/train/guard_stress.cpp).
//
// A lane has no thread of its own, and nothing here waits. Every event gives the lane to one thread at a time: an
// operation comes, an inner one finishes, the mode changes, the inner group is swapped, time is up. That thread does
// what can be done and leaves. In a healthy job the caller's thread launches, and the thread that finishes the inner
// operation commits and settles. A thread of the pool does anything else, since it may take long. Settling runs no
// callback of the caller, so a callback that waits for the next operation cannot block the lane.
//
// An operation that does not finish is abandoned, and the memory that it may still touch is buried with its inner
// group. An exact inner group ends the operation instead, and leaves nothing to bury.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "c10d/control.hpp"
#include "c10d/pool.hpp"
#include "c10d/rhythm.hpp"
#include "c10d/watch.hpp"

namespace taskd::comm {

// One inner group, from its making to its end, with the memory that abandoned operations may still touch. The subclass
// holds the group.
class Inner {
  public:
    virtual ~Inner() = default;

    void bury(std::shared_ptr<void> remains) { graveyard_.push_back(std::move(remains)); }

    // Whether it keeps the order of operations by itself, so that several may be in flight.
    virtual bool keeps_order() const { return false; }

  private:
    std::vector<std::shared_ptr<void>> graveyard_;
};

// Where a guard's lanes find the present inner group. Guarded by the control's lock.
struct Seat {
    std::string group;
    std::shared_ptr<Inner> inner;  // empty: never joined
    uint64_t number = 0;           // how often `inner` was set
    bool aborted = false;          // the user aborted this group
};

enum class Ending { kDone, kDrained, kFailed };

class Lane;

// One run of an operation on one inner group. finish() may come at any time, from any thread, even long after the
// operation was abandoned.
class Flight {
  public:
    Flight(std::weak_ptr<Lane> lane, uint64_t number) : lane_(std::move(lane)), number_(number) {}

    void finish(std::exception_ptr error) noexcept;

  private:
    friend class Lane;
    // No pointer to the inner group: an inner operation that never ends holds its flight, and would so keep its group
    // alive.
    const std::weak_ptr<Lane> lane_;
    const uint64_t number_;  // Seat::number at the launch
    bool finished_ = false;  // this, the error and the text are under the control's lock
    std::exception_ptr error_;
    std::string text_;
};

// One operation. Its lane calls it from one thread at a time and without the lock.
class Task {
  public:
    virtual ~Task() = default;

    // Starts the operation; flight->finish() must follow. An exception from here means a mistake of the caller.
    virtual void launch(Inner& inner, const std::shared_ptr<Flight>& flight) = 0;
    // The inner operation succeeded: gives the caller the results. May throw.
    virtual void commit() = 0;
    // The step is given up: makes the caller's tensors finite.
    virtual void drain() noexcept = 0;
    // Returns what an unfinished inner operation may still touch; the task no longer holds it. Empty: it touches
    // nothing.
    virtual std::shared_ptr<void> abandon() noexcept = 0;
    // Completes the operation for its caller. Runs no code of the caller on this thread, and never blocks.
    virtual void settle(Ending ending, std::exception_ptr error) noexcept = 0;
    // Returns an exception with this text, of the class that the caller expects.
    virtual std::exception_ptr error(const std::string& text) const = 0;

    // Whether commit() is quick and needs no interpreter. Then any thread may do it, including a transport's own.
    virtual bool quick() const = 0;

    virtual const std::string& kind() const = 0;
    virtual uint16_t kind_number() const = 0;
    virtual uint64_t bytes() const = 0;
    virtual std::chrono::milliseconds timeout() const = 0;

  private:
    friend class Lane;
    Control::Turn born_;
    Control::Turn failed_at_;
    uint64_t sequence_ = 0;
    bool announced_ = false;  // its failure was announced
    bool late_ = false;       // it was announced as late
    std::chrono::steady_clock::time_point launched_at_;
    std::shared_ptr<Flight> flight_;
    std::shared_ptr<Inner> inner_;  // the inner group that it runs on
};

// Is told when operations enter and leave an inner group, however they end (for the beat page). Called without the
// lock.
class Observer {
  public:
    virtual ~Observer() = default;
    virtual void entered(uint16_t kind, uint64_t bytes, uint64_t sequence, int64_t epoch) noexcept = 0;
    virtual void left(uint64_t sequence) noexcept = 0;
};

class Lane : public Control::Listener, public std::enable_shared_from_this<Lane> {
  public:
    using Clock = std::chrono::steady_clock;

    // `width`: how many operations may be in flight at once on an inner group that does not keep their order; 1 keeps
    // the order of collectives.
    Lane(Control& control, Pool& pool, std::shared_ptr<Seat> seat, size_t width, std::shared_ptr<Observer> observer);
    ~Lane() override;
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // Launches a task on this thread if the lane is free, else queues it. The mode must be NORMAL or PARKED. The lock
    // is released meanwhile. Throws std::system_error if a thread is needed and the system cannot start one.
    void submit(std::shared_ptr<Task> task, Control::Lock& lock);

    // The mode or the seat changed.
    void changed(const Control::Lock& lock) noexcept override;
    Clock::time_point due(Clock::time_point now, const Control::Lock& lock) noexcept override;

    // Starts the numbers of operations from 1 again.
    void restart_sequence(const Control::Lock&) { sequence_ = 0; }

    uint64_t sequence(const Control::Lock&) const { return sequence_; }

    // Whether no operation is waiting, in flight or about to write its results.
    bool idle(const Control::Lock&) const { return ending_ == 0 && queue_.empty() && flying_.empty(); }

    // Whether an operation is in flight that no drain has given up. Another rank may have ended it already, so on a new
    // inner group it could wait for ever.
    bool under_way(const Control::Lock& lock) const;

    // Waits until nothing is queued or in flight, at most until `deadline`. The lock is released meanwhile.
    bool wait_idle(Control::Lock& lock, std::chrono::steady_clock::time_point deadline);

  private:
    friend class Flight;
    using TaskPointer = std::shared_ptr<Task>;

    struct Verdict {
        TaskPointer task;
        Ending ending = Ending::kDone;
        std::exception_ptr error;
        bool abandoned = false;
    };

    void landed(Control::Lock& lock);
    void pass_on(Control::Lock& lock);
    bool take_landed(Verdict& verdict, const Control::Lock& lock);
    bool restless(const Control::Lock& lock) const;
    bool call_server(const Control::Lock& lock) noexcept;
    void serve();
    bool find_verdict(Verdict& verdict, const Control::Lock& lock);
    bool given_up(const Task& task, const Control::Lock& lock) const;
    bool judge_queued(Task& task, Verdict& verdict, const Control::Lock& lock) const;
    bool judge_flying(Task& task, Verdict& verdict, const Control::Lock& lock);
    bool judge_time(Task& task, Verdict& verdict, const Control::Lock& lock);
    bool judge_failure(Task& task, Verdict& verdict, const Control::Lock& lock);
    bool judge_given_up(const Task& task, Verdict& verdict, const Control::Lock& lock) const;
    void fail(const Task& task, Verdict& verdict, const std::string& what, const Control::Lock& lock) const;
    bool may_launch(const Control::Lock& lock) const;
    void launch_next(Control::Lock& lock);
    void end(Verdict verdict, Control::Lock& lock);
    void carry_out(Verdict& verdict, Control::Lock& lock);
    static void settle(Verdict verdict);
    void announce(const Task& task, const std::string& text, const Control::Lock& lock);
    Clock::time_point next_look(const Task& task) const;
    Clock::time_point next_look(const Control::Lock& lock) const;

    Control& control_;
    Pool& pool_;
    const std::shared_ptr<Seat> seat_;
    const size_t width_;
    const std::shared_ptr<Observer> observer_;
    Watch& watch_;
    Control::Bell idle_bell_;
    bool owned_ = false;  // a thread has the lane; it checks everything again before it leaves
    size_t ending_ = 0;   // operations that are being committed or drained
    uint64_t sequence_ = 0;
    Rhythm rhythm_;
    std::deque<TaskPointer> queue_;
    std::list<TaskPointer> flying_;
};

// Returns the text of an exception of any type.
std::string text_of(const std::exception_ptr& error);

}  // namespace taskd::comm
