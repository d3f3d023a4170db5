// The guard: one c10d backend that user code holds for the life of the job. Behind it, inner groups come and go.
//
// Why: DDP, FSDP2, DeviceMesh and other code keep the process group that they were given. When a rank is replaced, its
// communicator is dead. So the object that they hold must be ours, and the group behind it must be exchangeable. One
// method does that: reconfigure().
//
// On the wire a group is (member ranks, n-th group of these ranks), because c10d's own counters differ between a
// survivor and a newcomer. Collectives go through one ordered lane. Point-to-point operations go through another lane,
// which keeps their order but lets all be in flight at once: an in-order queue would deadlock a send and a receive.
//
// A guard of a stream-ordered inner group (NCCL, HCCL) uses no lanes: see streams.cpp. forwarded.cpp has what torch
// asks of a backend besides operations.
//
// In a forked child a guard of the parent has no threads. Its operations raise, and its end leaves all as it is.
//
// Does not: make inner groups (taskd/comm does, in Python), decide modes (control.hpp), or do any arithmetic.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/handing_over.hpp"
#include "c10d/lane.hpp"
#include "c10d/operation.hpp"
#include "c10d/progress.hpp"

namespace taskd::comm {

class Guard : public ::c10d::Backend {
  public:
    using Milliseconds = std::chrono::milliseconds;
    using BackendPointer = c10::intrusive_ptr<::c10d::Backend>;
    using WorkPointer = c10::intrusive_ptr<::c10d::Work>;
    using TensorLists = std::vector<Tensors>;

    // The kind of the inner groups: torch's name for it, and whether operations are queued on a device and end there.
    struct Kind {
        std::string name = "gloo";
        bool stream_ordered = false;
    };

    // `members`: the global ranks, in group order. `inner` may be empty until reconfigure(). `sockets`: file
    // descriptors that belong to the inner group.
    static c10::intrusive_ptr<Guard> make(int rank, int size, BackendPointer inner, std::vector<int64_t> members,
                                          int64_t ordinal, Milliseconds timeout, const std::vector<int>& sockets,
                                          Kind kind);
    // Returns the guards that exist and were not shut down, in the order in which they were made.
    static std::vector<c10::intrusive_ptr<Guard>> live();
    // Waits until no operation of any living guard may touch a tensor any more. Returns false after `timeout`.
    static bool quiesce(Milliseconds timeout);

    Guard(int rank, int size, std::vector<int64_t> members, int64_t ordinal, Milliseconds timeout, Kind kind);
    ~Guard() override;

    // Puts another inner group under this guard. Allowed while operations wait or are given up, or when there are none.
    void reconfigure(int64_t epoch, BackendPointer inner, const std::vector<int>& sockets);

    const std::string& identity() const { return seat_->group; }

    const std::vector<int64_t>& members() const { return members_; }

    int64_t ordinal() const { return ordinal_; }

    const Kind& kind() const { return kind_; }

    // Returns the present inner group, but only of a stream-ordered guard, whose group may end on any thread. Null:
    // there is none.
    BackendPointer inner() const;

    Milliseconds timeout();
    uint64_t sequence();
    bool joined();
    bool idle();

    // Whether a thread hands an operation of a stream-ordered group over and the inner group has not taken it yet.
    bool handing_over() const { return handing_over_ > 0; }

    // The numbers of this group's slots in the beat page, for collectives and for messages.
    uint32_t number() const { return progress_->number(); }

    uint32_t message_number() const { return message_progress_->number(); }

    const std::string getBackendName() const override { return kind_.name; }

    c10::intrusive_ptr<Options> getBackendOptions() override;
    bool supportsCoalescing() const override;
    void startCoalescing() override;
    WorkPointer endCoalescing() override;

    void setTimeout(Milliseconds timeout) override;

    void setSequenceNumberForGroup() override {}  // inner groups agree by being made together

    // The number that torch compares between ranks. It never goes back, and newcomers have the same one: its upper half
    // is the epoch of the last rebuild, and its lower half counts from there.
    uint64_t getSequenceNumberForGroup() override;

    bool supportsTimeEstimation() const override;
    bool supportsTensorAlloc(c10::DeviceIndex device) override;
    at::Tensor allocateTensor(long size, at::TensorOptions options) override;
    std::shared_ptr<c10::Allocator> getMemAllocator() override;
    std::unordered_map<std::string, uint64_t> getMemoryStats() override;
    void suspend() override;
    void resume() override;
    ::c10d::ErrorType getError() override;
    void eagerConnectSingleDevice(at::Device device) override;
    void waitForPendingWorks() override;
    void registerOnCompletionHook(std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) override;
    void enableCollectivesTiming() override;

    bool supportsSplitting() const override { return true; }

    BackendPointer split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                         const c10::intrusive_ptr<Options>& options) override;

    // Ends everything at once. The group cannot be used afterwards.
    void abort() override;
    // Lets queued operations finish, then leaves the inner group.
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
    // Counts the operations of one sort (collectives or messages) that were queued on a device.
    struct Queue {
        const std::shared_ptr<GroupProgress>& progress;
        std::atomic<uint64_t> sequence{0};
    };

    using Hook = std::function<void(std::shared_ptr<::c10d::WorkInfo>)>;

    // What torch has asked of the inner group, and later ones have to do, too.
    struct Wishes {
        bool timing = false;
        std::shared_ptr<const Hook> hook;
    };

    void check_ours(const std::string& called) const;
    void take_over(::c10d::Backend& inner);
    void resemble(::c10d::Backend& inner) const;
    WorkPointer collective(Plan plan);
    WorkPointer point_to_point(Plan plan);
    WorkPointer submit(Plan plan, const std::shared_ptr<Lane>& lane);
    void end_apart(Operation& operation, Mode mode, bool closed) const;
    WorkPointer queue(Plan plan, Queue& to);
    WorkPointer issue(Plan& plan, ::c10d::Backend& inner, uint64_t number, const Control::Turn& born,
                      HandingOver& handing_over);
    WorkPointer hold(Plan plan, uint64_t number, const std::exception_ptr& error, const Control::Turn& born);
    void play_back(Operation& operation) const;
    std::shared_ptr<Inner> unseat(const Control::Lock& lock);
    bool finish_queued(Control::Lock& lock);
    void forget() noexcept;

    Control& control_;
    const Birthplace birthplace_;
    const std::vector<int64_t> members_;
    const int64_t ordinal_;
    const Kind kind_;
    const c10::intrusive_ptr<Options> options_;
    const std::shared_ptr<Buffers> buffers_;
    const std::shared_ptr<Seat> seat_;
    const std::shared_ptr<GroupProgress> progress_;
    const std::shared_ptr<GroupProgress> message_progress_;
    const std::shared_ptr<Lane> collectives_;
    const std::shared_ptr<Lane> messages_;
    Queue queued_{progress_};
    Queue queued_messages_{message_progress_};
    Milliseconds timeout_;  // this and the following members are under the control's lock
    bool closed_ = false;
    std::atomic<int> handing_over_{0};
    std::shared_ptr<Inner> coalescing_;  // startCoalescing() was called, endCoalescing() was not
    int64_t rebuilt_ = 0;                // the epoch of the last rebuild; 0: none
    Wishes wishes_;
};

// Returns "n@ranks", with runs of ranks written as first-last. It is the same in every process that has the group.
std::string identity_of(const std::vector<int64_t>& members, int64_t ordinal);

}  // namespace taskd::comm
