// The plan of every c10d operation: what it reads, what it writes, how it is started on an inner group.
//
// Nothing is decided here. The inner group checks the arguments when the operation starts.
#include "c10d/guard.hpp"

#include "c10d/torch_versions.hpp"

namespace taskd::comm {

using ::c10d::Backend;
using ::c10d::OpType;

namespace {

Tensors flat(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists)
        all.insert(all.end(), list.begin(), list.end());
    return all;
}

// Splits the tensors into lists again, as they were before flat().
std::vector<Tensors> lists(const Tensors& all, const std::vector<size_t>& lengths) {
    std::vector<Tensors> made;
    auto from = all.begin();
    for (const size_t length : lengths) {
        made.emplace_back(from, from + static_cast<ptrdiff_t>(length));
        from += static_cast<ptrdiff_t>(length);
    }
    return made;
}

std::vector<size_t> lengths_of(const std::vector<Tensors>& lists) {
    std::vector<size_t> lengths;
    for (const Tensors& list : lists)
        lengths.push_back(list.size());
    return lengths;
}

Plan in_place(OpType type, const char* title, std::chrono::milliseconds timeout, const Tensors& tensors) {
    Plan plan;
    plan.type = type;
    plan.title = title;
    plan.timeout = timeout;
    plan.writes = tensors;
    plan.value = tensors;
    plan.copy_in = true;
    plan.keep = true;
    return plan;
}

Plan out_of_place(OpType type, const char* title, std::chrono::milliseconds timeout, Tensors reads, Tensors writes) {
    Plan plan;
    plan.type = type;
    plan.title = title;
    plan.timeout = timeout;
    plan.reads = std::move(reads);
    plan.value = writes;
    plan.writes = std::move(writes);
    return plan;
}

}  // namespace

Guard::WorkPointer Guard::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
    Plan plan = in_place(OpType::BROADCAST, "gloo:broadcast", options.timeout, tensors);
    plan.copy_in = false;
    if (options.rootRank == rank_) {
        plan.reads = std::move(plan.writes);
        plan.writes.clear();
    }
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend.broadcast(writes.empty() ? reads : writes, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
    Plan plan = in_place(OpType::ALLREDUCE, "gloo:all_reduce", options.timeout, tensors);
    plan.issue = [options](Backend& backend, Tensors&, Tensors& writes) { return backend.allreduce(writes, options); };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
    Plan plan = in_place(OpType::_ALLREDUCE_SPARSE, "gloo:sparse_all_reduce", options.timeout, tensors);
    plan.issue = [options](Backend& backend, Tensors&, Tensors& writes) {
        return backend.allreduce_sparse(writes, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) {
    Plan plan = in_place(OpType::ALLREDUCE_COALESCED, "gloo:all_reduce", options.timeout, tensors);
    plan.issue = [options](Backend& backend, Tensors&, Tensors& writes) {
        return backend.allreduce_coalesced(writes, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
    Plan plan = in_place(OpType::REDUCE, "gloo:reduce", options.timeout, tensors);
    // On the other ranks an inner group uses the tensor as scratch memory; the caller's tensor stays as it was.
    plan.copy_out = options.rootRank == rank_;
    plan.issue = [options](Backend& backend, Tensors&, Tensors& writes) { return backend.reduce(writes, options); };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) {
    Plan plan = out_of_place(OpType::ALLGATHER, "gloo:all_gather", options.timeout, inputs, flat(outputs));
    plan.gathers = true;
    plan.issue = [options, lengths = lengths_of(outputs)](Backend& backend, Tensors& reads, Tensors& writes) {
        TensorLists made = lists(writes, lengths);
        return backend.allgather(made, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const ::c10d::AllgatherOptions& options) {
    Plan plan = out_of_place(OpType::_ALLGATHER_BASE, "gloo:all_gather", options.timeout, {input}, {output});
    plan.gathers = true;
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend._allgather_base(writes[0], reads[0], options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) {
    Plan plan = out_of_place(OpType::ALLGATHER_COALESCED, "gloo:all_gather", options.timeout, inputs, flat(outputs));
    plan.issue = [options, lengths = lengths_of(outputs)](Backend& backend, Tensors& reads, Tensors& writes) {
        TensorLists made = lists(writes, lengths);
        return backend.allgather_coalesced(made, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const ::c10d::AllgatherOptions& options) {
    Plan plan = out_of_place(OpType::COALESCED, "gloo:all_gather", options.timeout, inputs, outputs);
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend.allgather_into_tensor_coalesced(writes, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) {
    Plan plan = out_of_place(OpType::GATHER, "gloo:gather", options.timeout, inputs, flat(outputs));
    plan.gathers = true;
    plan.issue = [options, lengths = lengths_of(outputs)](Backend& backend, Tensors& reads, Tensors& writes) {
        TensorLists made = lists(writes, lengths);
        return backend.gather(made, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) {
    Plan plan = out_of_place(OpType::SCATTER, "gloo:scatter", options.timeout, flat(inputs), outputs);
    plan.issue = [options, lengths = lengths_of(inputs)](Backend& backend, Tensors& reads, Tensors& writes) {
        TensorLists made = lists(reads, lengths);
        return backend.scatter(writes, made, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const ::c10d::ReduceScatterOptions& options) {
    Plan plan = out_of_place(OpType::REDUCE_SCATTER, "gloo:reduce_scatter", options.timeout, flat(inputs), outputs);
    plan.blocks = true;
    plan.issue = [options, lengths = lengths_of(inputs)](Backend& backend, Tensors& reads, Tensors& writes) {
        TensorLists made = lists(reads, lengths);
        return backend.reduce_scatter(writes, made, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const ::c10d::ReduceScatterOptions& options) {
    Plan plan = out_of_place(OpType::_REDUCE_SCATTER_BASE, "gloo:reduce_scatter", options.timeout, {input}, {output});
    plan.blocks = true;
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend._reduce_scatter_base(writes[0], reads[0], options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const ::c10d::ReduceScatterOptions& options) {
    Plan plan = out_of_place(kReduceScatterTensorCoalesced, "gloo:reduce_scatter", options.timeout, inputs, outputs);
    plan.blocks = true;
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend.reduce_scatter_tensor_coalesced(writes, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const ::c10d::AllToAllOptions& options) {
    Plan plan = out_of_place(OpType::ALLTOALL_BASE, "gloo:all_to_all", options.timeout, {input}, {output});
    plan.issue = [options, to = output_splits, from = input_splits](Backend& backend, Tensors& reads,
                                                                    Tensors& writes) mutable {
        return backend.alltoall_base(writes[0], reads[0], to, from, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) {
    Plan plan = out_of_place(OpType::ALLTOALL, "gloo:all_to_all", options.timeout, inputs, outputs);
    plan.issue = [options](Backend& backend, Tensors& reads, Tensors& writes) {
        return backend.alltoall(writes, reads, options);
    };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::barrier(const ::c10d::BarrierOptions& options) {
    Plan plan = out_of_place(OpType::BARRIER, "gloo:barrier", options.timeout, {}, {});
    plan.issue = [options](Backend& backend, Tensors&, Tensors&) { return backend.barrier(options); };
    return collective(std::move(plan));
}

Guard::WorkPointer Guard::send(Tensors& tensors, int destination, int tag) {
    Plan plan = out_of_place(OpType::SEND, "gloo:send", Plan::kUnsetTimeout, tensors, {});
    plan.value = tensors;
    plan.peer = destination;
    plan.tag = tag;
    plan.blocks = plan.abortable = true;
    plan.issue = [destination, tag](Backend& backend, Tensors& reads, Tensors&) {
        return backend.send(reads, destination, tag);
    };
    return point_to_point(std::move(plan));
}

Guard::WorkPointer Guard::recv(Tensors& tensors, int source, int tag) {
    Plan plan = out_of_place(OpType::RECV, "gloo:recv", Plan::kUnsetTimeout, {}, tensors);
    plan.peer = source;
    plan.tag = tag;
    plan.copy_in = true;  // the message may be shorter; the rest keeps the caller's values
    plan.blocks = plan.abortable = true;
    plan.issue = [source, tag](Backend& backend, Tensors&, Tensors& writes) {
        return backend.recv(writes, source, tag);
    };
    return point_to_point(std::move(plan));
}

Guard::WorkPointer Guard::recvAnysource(Tensors& tensors, int tag) {
    Plan plan = out_of_place(OpType::RECVANYSOURCE, "gloo:recvAnySource", Plan::kUnsetTimeout, {}, tensors);
    plan.tag = tag;
    plan.copy_in = true;
    plan.blocks = plan.abortable = true;
    plan.issue = [tag](Backend& backend, Tensors&, Tensors& writes) { return backend.recvAnysource(writes, tag); };
    return point_to_point(std::move(plan));
}

}  // namespace taskd::comm
