// The Work that a guard hands out: it tells the truth in every mode and always carries a future with the tensor list.
//
// Why: frameworks wait in three ways (wait(), the future, polling) and expect all three of every operation, which the
// inner groups do not offer. And a wait must never keep Ctrl-C from the main thread, nor survive a step given up.
//
// Does not: run anything; operation.hpp completes it.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "buffers.hpp"
#include "lane.hpp"

namespace taskd::comm {

class GuardWork : public ::c10d::Work {
  public:
    // `title` is what a profiler shows and outlives the work; `name` says kind and group in messages.
    GuardWork(int rank, ::c10d::OpType type, const char* title, std::string name, Tensors value, const Tensors& inputs);

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    Tensors result() override;
    void synchronize() override;
    // Throws StepAbandoned, outside autograd, if the step was given up; what the operation failed with; or a timeout.
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override;

    void set_source_rank(int rank) { source_rank_ = rank; }

    void set_sequence(uint64_t sequence) { sequence_ = sequence; }

    // Completes the future, then the work, as every backend of torch does. No lock is held while callbacks run.
    void complete(Ending ending, const std::exception_ptr& error) noexcept;

  private:
    bool wait_completed(std::chrono::milliseconds timeout);

    const std::string name_;
    Tensors value_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    std::atomic<int> source_rank_{-1};
    std::atomic<uint64_t> sequence_{0};
    std::atomic<bool> drained_{false};
};

}  // namespace taskd::comm
