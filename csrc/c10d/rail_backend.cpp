// See rail_backend.hpp. This file has the collectives. rail_messages.cpp has the operations made of messages between
// pairs.
#include "c10d/rail_backend.hpp"

#include <algorithm>

#include "c10d/python.hpp"
#include "c10d/rail_tensors.hpp"
#include "c10d/torch_versions.hpp"

namespace taskd::comm {

using ::c10d::OpType;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalPeriod{100};
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);  // more is "no limit"

Tensors flat(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists)
        all.insert(all.end(), list.begin(), list.end());
    return all;
}

int root_of(int64_t rank, int size, const char* title) {
    TORCH_CHECK(rank >= 0 && rank < size, title, ": there is no rank ", rank, " in a group of ", size, ".");
    return static_cast<int>(rank);
}

// Returns what is moved, with its type: ranks that give tensors of different types are told so.
rail::Extent extent_of(const at::Tensor& tensor) {
    return {tensor.nbytes(), dtype_of(tensor)};
}

void check_same_count(const Tensors& outputs, const Tensors& inputs, const char* title) {
    TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(), title, " was given ", inputs.size(), " inputs and ",
                outputs.size(), " outputs; give one of each, and one at least.");
}

}  // namespace

RailBackend::RailBackend(std::shared_ptr<rail::Engine> engine, std::shared_ptr<rail::Group> group, Milliseconds timeout)
    : Backend(group->me(), group->size()),
      engine_(std::move(engine)),
      group_(std::move(group)),
      seat_(std::make_shared<RailSeat>()),
      options_(c10::make_intrusive<Options>("rail", timeout)),
      timeout_ms_(timeout.count()) {
    seat_->group = group_->identity();
}

RailBackend::~RailBackend() {
    if (!birthplace_.is_elsewhere()) {
        end("its group was destroyed");
        return;
    }
    new std::shared_ptr<rail::Group>(std::move(group_));
    new std::shared_ptr<rail::Engine>(engine_);
}

void RailBackend::setTimeout(Milliseconds timeout) {
    options_->timeout = timeout;
    timeout_ms_ = timeout.count();
}

void RailBackend::end(const std::string& reason) {
    if (birthplace_.is_elsewhere())
        return;
    const WithoutGil released;
    {
        const std::lock_guard<std::mutex> held(seat_->mutex);
        if (!seat_->closed) {
            seat_->closed = true;
            seat_->reason = reason;
        }
    }
    group_->abort(reason);
}

void RailBackend::shutdown() {
    if (birthplace_.is_elsewhere())
        return;
    const WithoutGil released;
    const auto deadline = Clock::now() + std::clamp(Milliseconds(timeout_ms_), Milliseconds(0), kLongest);
    seat_->awaited = true;
    std::unique_lock<std::mutex> held(seat_->mutex);
    while (seat_->under_way > 0 && !seat_->closed && Clock::now() < deadline) {
        seat_->bell.wait_until(held, std::min(deadline, Clock::now() + kSignalPeriod));
        held.unlock();
        if (on_main_thread())
            serve_signals();
        held.lock();
    }
    held.unlock();
    end("its group was shut down");
}

RailBackend::Draft RailBackend::draft(const char* title, Milliseconds timeout, Tensors value) const {
    if (birthplace_.is_elsewhere())
        throw_inherited(std::string(title) + " was called on group " + identity() + ", which");
    const Milliseconds limit = timeout == ::c10d::kUnsetTimeout ? Milliseconds(timeout_ms_) : timeout;
    const bool limited = limit > kNoTimeout && limit < kLongest;
    return {std::make_shared<RailRun>(group_, seat_, title, std::move(value)),
            title,
            limited ? std::chrono::nanoseconds(limit).count() : 0,
            {}};
}

c10::intrusive_ptr<RailWork> RailBackend::work_of(const Draft& draft, OpType type, const Tensors& inputs) {
    return c10::make_intrusive<RailWork>(rank_, type, draft.title, inputs, draft.run, ++sequence_);
}

RailBackend::WorkPointer RailBackend::launch(Draft draft, OpType type, const Tensors& inputs) {
    c10::intrusive_ptr<RailWork> work = work_of(draft, type, inputs);
    for (const RailRun::Start& part : draft.parts)
        draft.run->start(*group_, part);
    draft.run->started();
    return work;
}

void RailBackend::add_all_reduce(Draft& draft, const at::Tensor& tensor, const ::c10d::ReduceOp& op) const {
    void* data = to_write(*draft.run, tensor, /*contents=*/true, draft.title);
    const rail::Reduction reduction = reduction_of(op, tensor, draft.title);
    draft.parts.emplace_back([data, count = static_cast<size_t>(tensor.numel()), dtype = dtype_of(tensor), reduction,
                              limit = draft.timeout_ns](rail::Group& group, rail::Done done) {
        return group.all_reduce(data, count, dtype, reduction, limit, std::move(done));
    });
}

void RailBackend::add_all_gather(Draft& draft, const Tensors& outputs, const at::Tensor& input) const {
    check_each(outputs, size_, input, draft.title);
    std::vector<void*> to;
    for (const at::Tensor& output : outputs)
        to.push_back(to_write(*draft.run, output, /*contents=*/false, draft.title));
    const void* from = to_read_apart(*draft.run, input, outputs, &outputs[static_cast<size_t>(rank_)], draft.title);
    draft.parts.emplace_back([from, to = std::move(to), extent = extent_of(input), limit = draft.timeout_ns](
                                 rail::Group& group, rail::Done done) mutable {
        return group.all_gather(from, std::move(to), extent, limit, std::move(done));
    });
}

void RailBackend::add_all_gather(Draft& draft, const at::Tensor& output, const at::Tensor& input) const {
    check_whole(output, input, size_, draft.title);
    const rail::Extent extent = extent_of(input);
    void* whole = to_write(*draft.run, output, /*contents=*/false, draft.title);
    std::vector<void*> to;
    for (int rank = 0; rank < size_; ++rank)
        to.push_back(part_of(whole, extent.bytes, rank));
    // The usual way to save memory: the input is this rank's own part of the output.
    check_memory(input, draft.title);
    const bool in_place = input.is_contiguous() && input.const_data_ptr() == to[static_cast<size_t>(rank_)];
    const void* from = in_place ? to_read(*draft.run, input, draft.title)
                                : to_read_apart(*draft.run, input, {output}, nullptr, draft.title);
    draft.parts.emplace_back(
        [from, to = std::move(to), extent, limit = draft.timeout_ns](rail::Group& group, rail::Done done) mutable {
            return group.all_gather(from, std::move(to), extent, limit, std::move(done));
        });
}

void RailBackend::add_reduce_scatter(Draft& draft, const at::Tensor& output, const at::Tensor& input,
                                     const ::c10d::ReduceOp& op) const {
    check_whole(input, output, size_, draft.title);
    const rail::Reduction reduction = reduction_of(op, output, draft.title);
    void* to = to_write(*draft.run, output, /*contents=*/false, draft.title);
    const void* whole = to_read_apart(*draft.run, input, {output}, nullptr, draft.title);
    std::vector<const void*> from;
    for (int rank = 0; rank < size_; ++rank)
        from.push_back(part_of(whole, output.nbytes(), rank));
    draft.parts.emplace_back([from = std::move(from), to, count = static_cast<size_t>(output.numel()),
                              dtype = dtype_of(output), reduction,
                              limit = draft.timeout_ns](rail::Group& group, rail::Done done) mutable {
        return group.reduce_scatter(std::move(from), to, count, dtype, reduction, limit, std::move(done));
    });
}

RailBackend::WorkPointer RailBackend::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
    Draft made = draft("rail:broadcast", options.timeout, tensors);
    const at::Tensor& tensor = only(tensors, made.title);
    const int root = root_of(options.rootRank, size_, made.title);
    void* data = root == rank_ ? const_cast<void*>(to_read(*made.run, tensor, made.title))
                               : to_write(*made.run, tensor, /*contents=*/false, made.title);
    made.parts.emplace_back(
        [data, extent = extent_of(tensor), root, limit = made.timeout_ns](rail::Group& group, rail::Done done) {
            return group.broadcast(data, extent, root, limit, std::move(done));
        });
    return launch(std::move(made), OpType::BROADCAST, tensors);
}

RailBackend::WorkPointer RailBackend::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
    const at::Tensor& tensor = only(tensors, "rail:all_reduce");
    if (tensor.layout() != at::kStrided)
        return allreduce_sparse(tensors, options);
    Draft made = draft("rail:all_reduce", options.timeout, tensors);
    add_all_reduce(made, tensor, options.reduceOp);
    return launch(std::move(made), OpType::ALLREDUCE, tensors);
}

RailBackend::WorkPointer RailBackend::allreduce_coalesced(Tensors& tensors,
                                                          const ::c10d::AllreduceCoalescedOptions& options) {
    Draft made = draft("rail:all_reduce_coalesced", options.timeout, tensors);
    TORCH_CHECK(!tensors.empty(), made.title, " was given no tensor.");
    for (const at::Tensor& tensor : tensors)
        add_all_reduce(made, tensor, options.reduceOp);
    return launch(std::move(made), OpType::ALLREDUCE_COALESCED, tensors);
}

RailBackend::WorkPointer RailBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
    Draft made = draft("rail:reduce", options.timeout, tensors);
    const at::Tensor& tensor = only(tensors, made.title);
    const int root = root_of(options.rootRank, size_, made.title);
    const rail::Reduction reduction = reduction_of(options.reduceOp, tensor, made.title);
    void* to = nullptr;
    const void* from = nullptr;
    if (root == rank_) {
        to = to_write(*made.run, tensor, /*contents=*/true, made.title);
        from = to;
    } else {
        from = to_read(*made.run, tensor, made.title);
    }
    made.parts.emplace_back([from, to, count = static_cast<size_t>(tensor.numel()), dtype = dtype_of(tensor), reduction,
                             root, limit = made.timeout_ns](rail::Group& group, rail::Done done) {
        return group.reduce(from, to, count, dtype, reduction, root, limit, std::move(done));
    });
    return launch(std::move(made), OpType::REDUCE, tensors);
}

RailBackend::WorkPointer RailBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                const ::c10d::AllgatherOptions& options) {
    Draft made = draft("rail:all_gather", options.timeout, flat(outputs));
    add_all_gather(made, only(outputs, made.title), only(inputs, made.title));
    return launch(std::move(made), OpType::ALLGATHER, inputs);
}

RailBackend::WorkPointer RailBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::AllgatherOptions& options) {
    Draft made = draft("rail:all_gather", options.timeout, {output});
    add_all_gather(made, output, input);
    return launch(std::move(made), OpType::_ALLGATHER_BASE, {input});
}

RailBackend::WorkPointer RailBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                          const ::c10d::AllgatherOptions& options) {
    Draft made = draft("rail:all_gather_coalesced", options.timeout, flat(outputs));
    TORCH_CHECK(outputs.size() == static_cast<size_t>(size_), made.title, ": ", outputs.size(),
                " lists do not fit a group of ", size_, " ranks; give one for each.");
    for (const Tensors& list : outputs)
        check_same_count(list, inputs, made.title);
    for (size_t i = 0; i < inputs.size(); ++i) {
        Tensors to;
        for (const Tensors& list : outputs)
            to.push_back(list[i]);
        add_all_gather(made, to, inputs[i]);
    }
    return launch(std::move(made), OpType::ALLGATHER_COALESCED, inputs);
}

RailBackend::WorkPointer RailBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const ::c10d::AllgatherOptions& options) {
    Draft made = draft("rail:all_gather_coalesced", options.timeout, outputs);
    check_same_count(outputs, inputs, made.title);
    for (size_t i = 0; i < inputs.size(); ++i)
        add_all_gather(made, outputs[i], inputs[i]);
    return launch(std::move(made), OpType::COALESCED, inputs);
}

RailBackend::WorkPointer RailBackend::gather(TensorLists& outputs, Tensors& inputs,
                                             const ::c10d::GatherOptions& options) {
    Draft made = draft("rail:gather", options.timeout, flat(outputs));
    const at::Tensor& input = only(inputs, made.title);
    const int root = root_of(options.rootRank, size_, made.title);
    std::vector<void*> to;
    const void* from = nullptr;
    if (root == rank_) {
        const Tensors& all = only(outputs, made.title);
        check_each(all, size_, input, made.title);
        for (const at::Tensor& output : all)
            to.push_back(to_write(*made.run, output, /*contents=*/false, made.title));
        from = to_read_apart(*made.run, input, all, &all[static_cast<size_t>(rank_)], made.title);
    } else {
        TORCH_CHECK(outputs.empty(), made.title, ": only the root, rank ", root, ", is given outputs.");
        from = to_read(*made.run, input, made.title);
    }
    made.parts.emplace_back([from, to = std::move(to), extent = extent_of(input), root, limit = made.timeout_ns](
                                rail::Group& group, rail::Done done) mutable {
        return group.gather(from, std::move(to), extent, root, limit, std::move(done));
    });
    return launch(std::move(made), OpType::GATHER, inputs);
}

RailBackend::WorkPointer RailBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                              const ::c10d::ScatterOptions& options) {
    Draft made = draft("rail:scatter", options.timeout, outputs);
    const at::Tensor& output = only(outputs, made.title);
    const int root = root_of(options.rootRank, size_, made.title);
    void* to = to_write(*made.run, output, /*contents=*/false, made.title);
    std::vector<const void*> from;
    if (root == rank_) {
        const Tensors& all = only(inputs, made.title);
        check_each(all, size_, output, made.title);
        for (int rank = 0; rank < size_; ++rank) {
            from.push_back(to_read_apart(*made.run, all[static_cast<size_t>(rank)], outputs,
                                         rank == rank_ ? &output : nullptr, made.title));
        }
    } else {
        TORCH_CHECK(inputs.empty(), made.title, ": only the root, rank ", root, ", is given inputs.");
    }
    made.parts.emplace_back([from = std::move(from), to, extent = extent_of(output), root, limit = made.timeout_ns](
                                rail::Group& group, rail::Done done) mutable {
        return group.scatter(std::move(from), to, extent, root, limit, std::move(done));
    });
    return launch(std::move(made), OpType::SCATTER, inputs.empty() ? Tensors{} : inputs[0]);
}

RailBackend::WorkPointer RailBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                     const ::c10d::ReduceScatterOptions& options) {
    Draft made = draft("rail:reduce_scatter", options.timeout, outputs);
    const at::Tensor& output = only(outputs, made.title);
    const Tensors& all = only(inputs, made.title);
    check_each(all, size_, output, made.title);
    const rail::Reduction reduction = reduction_of(options.reduceOp, output, made.title);
    void* to = to_write(*made.run, output, /*contents=*/false, made.title);
    std::vector<const void*> from;
    for (const at::Tensor& input : all)
        from.push_back(to_read_apart(*made.run, input, outputs, nullptr, made.title));
    made.parts.emplace_back([from = std::move(from), to, count = static_cast<size_t>(output.numel()),
                             dtype = dtype_of(output), reduction,
                             limit = made.timeout_ns](rail::Group& group, rail::Done done) mutable {
        return group.reduce_scatter(std::move(from), to, count, dtype, reduction, limit, std::move(done));
    });
    return launch(std::move(made), OpType::REDUCE_SCATTER, all);
}

RailBackend::WorkPointer RailBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const ::c10d::ReduceScatterOptions& options) {
    Draft made = draft("rail:reduce_scatter", options.timeout, {output});
    add_reduce_scatter(made, output, input, options.reduceOp);
    return launch(std::move(made), OpType::_REDUCE_SCATTER_BASE, {input});
}

RailBackend::WorkPointer RailBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const ::c10d::ReduceScatterOptions& options) {
    Draft made = draft("rail:reduce_scatter_coalesced", options.timeout, outputs);
    check_same_count(outputs, inputs, made.title);
    for (size_t i = 0; i < inputs.size(); ++i)
        add_reduce_scatter(made, outputs[i], inputs[i], options.reduceOp);
    return launch(std::move(made), kReduceScatterTensorCoalesced, inputs);
}

RailBackend::WorkPointer RailBackend::barrier(const ::c10d::BarrierOptions& options) {
    Draft made = draft("rail:barrier", options.timeout, {});
    made.parts.emplace_back([limit = made.timeout_ns](rail::Group& group, rail::Done done) {
        return group.barrier(limit, std::move(done));
    });
    return launch(std::move(made), OpType::BARRIER, {});
}

}  // namespace taskd::comm
