// The Work that a guard hands out: it tells the truth in every mode and always has a future with the tensor list.
//
// Why: frameworks wait in three ways (wait(), the future, polling) and expect all three from every operation. The inner
// groups do not offer that. And a wait must never keep Ctrl-C from the main thread, nor go on after the step is given
// up.
//
// There are two objects, because an operation ends on the thread that finishes it. A transport's own thread must
// neither run callbacks nor let go of a tensor that Python knows. That thread completes the Outcome. The user holds the
// Work. A waiting thread is woken directly. The future exists only if somebody asked for it. A thread of the pool
// completes it, ends a profiler's range, and lets go of tensors that nobody waits for.
//
// Does not: run anything; operation.hpp completes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d/buffers.hpp"
#include "c10d/forks.hpp"
#include "c10d/lane.hpp"

namespace taskd::comm {

// How one operation ended.
class Outcome {
  public:
    explicit Outcome(Tensors value) : value_(std::move(value)) {}

    virtual ~Outcome() = default;

    // Kind and group, for messages.
    virtual std::string name() const = 0;

    bool completed() const;
    bool drained() const;
    std::exception_ptr error() const;
    // Waits for the end. Returns false after `timeout`. Serves Python's signals on the main thread.
    bool wait(std::chrono::milliseconds timeout);
    // Returns the future. It is complete if the operation is.
    c10::intrusive_ptr<c10::ivalue::Future> future();
    // To be called when a wait found the operation complete. Lets go of what it needed, and makes sure that the future
    // is complete.
    void waited();
    // The Work is gone: lets go of all tensors as soon as the operation is complete.
    void abandon();

    const Tensors& value() const { return value_; }

    void set_profiled_end(std::function<void()> callback) { profiled_end_ = std::move(callback); }

    std::atomic<int> source_rank{-1};

  protected:
    // Returns true if conclude() must follow, on a thread that may run callbacks and take the interpreter.
    bool complete(Ending ending, const std::exception_ptr& error) noexcept;
    void conclude() noexcept;
    // Lets go of what the operation needed. Called once it is complete, on a thread that may take the interpreter.
    virtual void release() noexcept = 0;

    Tensors value_;
    mutable std::mutex mutex_;

  private:
    bool claim_future(const std::unique_lock<std::mutex>& held);
    void complete_future() noexcept;
    void release_all() noexcept;

    std::condition_variable bell_;
    std::function<void()> profiled_end_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    std::exception_ptr error_;
    Ending ending_ = Ending::kDone;
    bool completed_ = false;
    bool claimed_ = false;     // a thread completes the future, or has done so
    bool concluding_ = false;  // conclude() will be called
    bool abandoned_ = false;
};

class GuardWork : public ::c10d::Work {
  public:
    // `title` is what a profiler shows and outlives the work.
    GuardWork(int rank, ::c10d::OpType type, const char* title, const Tensors& inputs,
              std::shared_ptr<Outcome> outcome);
    ~GuardWork() override;

    bool isCompleted() override { return is_ours() && outcome_->completed(); }

    bool isSuccess() const override { return is_ours() && outcome_->completed() && !outcome_->error(); }

    std::exception_ptr exception() const override { return is_ours() ? outcome_->error() : nullptr; }

    int sourceRank() const override { return outcome_->source_rank; }

    Tensors result() override { return outcome_->value(); }

    void synchronize() override { wait(kNoTimeout); }

    // Throws StepAbandoned, outside autograd, if the step was given up. Else throws the operation's error, or a
    // timeout. Throws UsageError in a forked child: the thread that would end the operation is its parent's.
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

    uint64_t getSequencenumber() const override { return 0; }

  private:
    bool is_ours() const { return !birthplace_.is_elsewhere(); }

    const std::shared_ptr<Outcome> outcome_;
    const Birthplace birthplace_;
};

}  // namespace taskd::comm
