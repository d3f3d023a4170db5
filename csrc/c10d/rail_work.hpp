// One operation on a rail group, from its start to its end, and the Work that torch holds of it.
//
// Why two objects: the engine's thread ends an operation. It must never let go of a tensor, run a callback or do
// anything else that may ask for Python's interpreter. So the operation under way is a run, which the engine holds, and
// the Work only refers to it. The engine's thread wakes waiting threads directly. Only what needs an interpreter
// (futures, a profiler, tensors that nothing else holds) goes to a thread of the pool.
//
// An abort is exact: after it returns, nothing reads or writes the caller's tensors. This holds for an operation on
// their own memory, and for one on a contiguous copy that would be copied back.
//
// Does not: know which operation it is (rail_backend.cpp starts its parts), or decide to abort.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c10d/buffers.hpp"
#include "c10d/exact.hpp"
#include "c10d/forks.hpp"
#include "rail/collectives/group.hpp"

namespace taskd::comm {

// The state that a backend and its runs share.
struct RailSeat {
    std::string group;
    std::mutex mutex;  // held while results are copied back to callers' tensors
    bool closed = false;
    std::string reason;
    std::atomic<size_t> under_way{0};
    std::atomic<bool> awaited{false};  // a thread waits until nothing is under way any more
    std::condition_variable bell;
};

class RailRun : public std::enable_shared_from_this<RailRun> {
  public:
    using Start = std::function<uint64_t(rail::Group& group, rail::Done done)>;
    using Ended = ExactWork::Ended;

    // `title` names the kind of operation in messages and outlives the run. `value` is the caller's result.
    RailRun(std::weak_ptr<rail::Group> group, std::shared_ptr<RailSeat> seat, const char* title, Tensors value);
    ~RailRun();

    // Keeps memory alive until the operation's end. To be called only while the run is being started.
    void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }

    // `from` is copied to `to` when the operation has succeeded.
    void copy_back(at::Tensor from, at::Tensor to) { copies_.emplace_back(std::move(from), std::move(to)); }

    // Starts one operation of the group as a part of this one.
    void start(rail::Group& group, const Start& part);

    // Tells the run that all parts were started. It does not end before.
    void started() { part_ended(nullptr); }

    // For a run whose parts come one after the other, on a thread that may block: starts operations of the group and
    // waits for them. Throws what one of them failed with.
    void await(rail::Group& group, const std::vector<Start>& operations);
    // Ends such a run. `apply` (may be empty) writes the results, unless the run was aborted meanwhile.
    void conclude(const std::function<void()>& apply, std::exception_ptr error);

    // Calls `ended` once; at once if the run has already ended. The call may come on any thread, including the
    // engine's, so it must be quick and leave Python alone.
    void when_done(Ended ended);
    // Waits for the end. Returns false after the deadline.
    bool wait_until(std::chrono::steady_clock::time_point deadline);
    // Ends the run, unless it has ended. Afterwards no tensor of the caller is touched.
    void abort(const std::string& reason);
    // The Work is gone: lets go of the tensors as soon as the operation allows it.
    void abandon();
    // Lets go of what an ended operation needed. To be called on a thread that may take the interpreter.
    void release();

    bool ended() const;
    std::exception_ptr error() const;
    c10::intrusive_ptr<c10::ivalue::Future> future();

    std::string name() const { return std::string(title_) + " in group " + seat_->group; }

    const Tensors& value() const { return value_; }

    void set_profiled_end(std::function<void()> callback) { profiled_end_ = std::move(callback); }

    int source = -1;  // the rank that a message came from; the group writes it before the end

  private:
    std::exception_ptr error_of(const rail::Failure& failure) const;
    void part_ended(const rail::Failure* failure) noexcept;
    void settle() noexcept;
    void finish(std::unique_lock<std::mutex> held) noexcept;
    void leave() noexcept;
    void remember(uint64_t handle, rail::Group& group);

    const std::weak_ptr<rail::Group> group_;
    const std::shared_ptr<RailSeat> seat_;
    const char* const title_;
    Tensors value_;
    Tensors kept_;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
    std::function<void()> profiled_end_;

    mutable std::mutex mutex_;
    std::condition_variable bell_;
    std::vector<uint64_t> handles_;
    size_t open_ = 1;  // parts that have not ended, and one more until started()
    bool ended_ = false;
    bool aborted_ = false;
    bool abandoned_ = false;
    std::string abort_reason_;
    std::exception_ptr error_;
    std::vector<Ended> listeners_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class RailWork : public ExactWork {
  public:
    // `title` is what a profiler shows and outlives the work.
    RailWork(int rank, ::c10d::OpType type, const char* title, const Tensors& inputs, std::shared_ptr<RailRun> run,
             uint64_t sequence);
    ~RailWork() override;

    bool isCompleted() override { return is_ours() && run_->ended(); }

    bool isSuccess() const override { return is_ours() && run_->ended() && !run_->error(); }

    std::exception_ptr exception() const override { return is_ours() ? run_->error() : nullptr; }

    int sourceRank() const override { return run_->source; }

    Tensors result() override { return run_->value(); }

    void synchronize() override { wait(kNoTimeout); }

    // Throws the operation's error, or a timeout, as a DistBackendError; UsageError in a forked child. Serves Python's
    // signals.
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    // After it returns, no tensor of the operation is touched any more.
    void abort() override;

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

    uint64_t getSequencenumber() const override { return sequence_; }

    void when_done(Ended ended) override { run_->when_done(std::move(ended)); }

  private:
    bool is_ours() const { return !birthplace_.is_elsewhere(); }

    const std::shared_ptr<RailRun> run_;
    const uint64_t sequence_;
    const Birthplace birthplace_;
};

}  // namespace taskd::comm
