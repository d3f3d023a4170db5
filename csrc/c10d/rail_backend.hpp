// The rail transport as a c10d backend. It turns torch's operations on tensors into a group's operations on memory.
//
// Why: on the CPU, the guard needs an inner group that can be aborted at any moment, that no broken cable can stop and
// that works on the caller's own memory. Frameworks need torch's whole interface. Here the one is translated into the
// other.
//
// Order: collectives are numbered in the order of the calls. Messages are numbered by member, direction and tag. So
// several operations may be under way. A wrong argument is reported before anything is sent.
//
// Does not: do arithmetic or communicate (csrc/rail does), replace a group that ended (guard.hpp does), or choose
// addresses and keys (taskd/comm/rail.py does).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/rail_work.hpp"
#include "rail/engine/engine.hpp"

namespace taskd::comm {

class RailBackend : public ::c10d::Backend, public ExactBackend {
  public:
    using Milliseconds = std::chrono::milliseconds;
    using WorkPointer = c10::intrusive_ptr<::c10d::Work>;
    using TensorLists = std::vector<Tensors>;

    RailBackend(std::shared_ptr<rail::Engine> engine, std::shared_ptr<rail::Group> group, Milliseconds timeout);
    ~RailBackend() override;

    const std::string& identity() const { return seat_->group; }

    const std::string getBackendName() const override { return "rail"; }

    c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

    void setTimeout(Milliseconds timeout) override;

    void setSequenceNumberForGroup() override {}  // a group's members begin with the same number

    uint64_t getSequenceNumberForGroup() override { return sequence_; }

    // Ends everything, now and later, with this reason. After it returns, no caller's tensor is touched any more.
    void end(const std::string& reason) override;

    void abort() override { end("its group was ended by abort()"); }

    // Waits for operations under way, at most the group's timeout. The group cannot be used afterwards.
    void shutdown() override;

    WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
    WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
    WorkPointer allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
    WorkPointer allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) override;
    WorkPointer reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
    WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) override;
    WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                                const ::c10d::AllgatherOptions& options) override;
    WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                    const ::c10d::AllgatherOptions& options) override;
    WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const ::c10d::AllgatherOptions& options) override;
    WorkPointer gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) override;
    WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) override;
    WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                               const ::c10d::ReduceScatterOptions& options) override;
    WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                     const ::c10d::ReduceScatterOptions& options) override;
    WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const ::c10d::ReduceScatterOptions& options) override;
    WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                              std::vector<int64_t>& input_splits, const ::c10d::AllToAllOptions& options) override;
    WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) override;
    WorkPointer barrier(const ::c10d::BarrierOptions& options) override;
    void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;
    WorkPointer send(Tensors& tensors, int destination, int tag) override;
    WorkPointer recv(Tensors& tensors, int source, int tag) override;
    WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  private:
    // An operation that has been checked but not started.
    struct Draft {
        std::shared_ptr<RailRun> run;
        const char* title;
        int64_t timeout_ns;
        std::vector<RailRun::Start> parts;
    };

    Draft draft(const char* title, Milliseconds timeout, Tensors value) const;
    WorkPointer launch(Draft draft, ::c10d::OpType type, const Tensors& inputs);
    c10::intrusive_ptr<RailWork> work_of(const Draft& draft, ::c10d::OpType type, const Tensors& inputs);
    uint32_t next_tags();
    WorkPointer receive(Tensors& tensors, int source, int tag, const char* title, ::c10d::OpType type);

    void add_all_reduce(Draft& draft, const at::Tensor& tensor, const ::c10d::ReduceOp& op) const;
    void add_all_gather(Draft& draft, const Tensors& outputs, const at::Tensor& input) const;
    void add_all_gather(Draft& draft, const at::Tensor& output, const at::Tensor& input) const;
    void add_reduce_scatter(Draft& draft, const at::Tensor& output, const at::Tensor& input,
                            const ::c10d::ReduceOp& op) const;

    const std::shared_ptr<rail::Engine> engine_;  // outlives its group
    std::shared_ptr<rail::Group> group_;
    const std::shared_ptr<RailSeat> seat_;
    const c10::intrusive_ptr<Options> options_;
    const Birthplace birthplace_;
    std::atomic<int64_t> timeout_ms_;
    std::atomic<uint64_t> sequence_{0};
    std::atomic<uint32_t> exchanges_{0};  // number of operations of several rounds; each has its own tags
};

}  // namespace taskd::comm
