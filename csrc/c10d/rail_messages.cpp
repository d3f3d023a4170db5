// The operations that a rail group makes of messages between pairs: all-to-all, send and receive, and operations of
// several rounds.
//
// A sparse all-reduce must learn how much each member has before it can make room for it. A monitored barrier says
// which ranks did not come. Both are made of messages under tags that no caller can use, a new one for each operation.
// If a second round counted as a collective, different ranks would number it differently. They run on a thread that may
// block, never on the engine's.
#include <ATen/core/LegacyTypeDispatch.h>

#include <numeric>

#include "c10d/ending.hpp"
#include "c10d/pool.hpp"
#include "c10d/python.hpp"
#include "c10d/rail_backend.hpp"
#include "c10d/rail_tensors.hpp"

namespace taskd::comm {

using ::c10d::OpType;
using Clock = std::chrono::steady_clock;

namespace {

using Operations = std::vector<RailRun::Start>;

// torch's messages for a monitored barrier that fails, because people and programs look for them. Ranks are those of
// the group.

constexpr char kOriginal[] = "\n Original exception: ";

std::string not_answered(int rank) {
    const std::string me = std::to_string(rank);
    return "[Rank " + me + "]: Rank " + me +
           " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
           "Please check rank 0 logs for faulty rank." +
           kOriginal;
}

std::string numbers(const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks)
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
}

std::string not_passed(const std::vector<int>& ranks, std::chrono::milliseconds limit) {
    return std::string("[Rank 0]: Rank") + (ranks.size() == 1 ? " " : "s ") + numbers(ranks) +
           " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms";
}

std::string ran_out(const std::vector<int>& passed, std::chrono::milliseconds limit) {
    return "[Rank 0]: Rank 0 timed out in monitoredBarrier after " + std::to_string(limit.count()) + " ms. " +
           (passed.empty() ? "No ranks successfully processed in monitoredBarrier."
                           : "Successfully processed ranks: " + numbers(passed));
}

RailRun::Start sending(const void* data, rail::Extent extent, int to, uint32_t tag, int64_t timeout_ns) {
    return [=](rail::Group& group, rail::Done done) {
        return group.send(data, extent, to, tag, timeout_ns, std::move(done));
    };
}

RailRun::Start receiving(void* data, rail::Extent extent, int from, uint32_t tag, int64_t timeout_ns,
                         int* source = nullptr) {
    return [=](rail::Group& group, rail::Done done) {
        return group.receive(data, extent, from, tag, timeout_ns, source, std::move(done));
    };
}

// torch's own check looks only at the sum of the splits.
void check_splits(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size, const char* title) {
    for (const int64_t split : splits)
        TORCH_CHECK(split >= 0, title, ": there are no ", split, " rows; give each rank a split of 0 or more.");
    ::c10d::checkSplitSizes(splits, tensor, size);
}

// Where each rank's part of a tensor lies, by the rows of its first dimension.
std::vector<rail::Piece> pieces_of(void* memory, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                   int size) {
    const size_t rows = tensor.dim() == 0 ? 1 : static_cast<size_t>(tensor.size(0));
    const size_t row = rows == 0 ? 0 : tensor.nbytes() / rows;
    std::vector<rail::Piece> pieces;
    size_t offset = 0;
    for (int rank = 0; rank < size; ++rank) {
        const size_t share =
            splits.empty() ? rows / static_cast<size_t>(size) : static_cast<size_t>(splits[static_cast<size_t>(rank)]);
        pieces.push_back({static_cast<char*>(memory) + offset, share * row});
        offset += share * row;
    }
    return pieces;
}

// What each member says about its sparse tensor before it sends it.
struct SparseForm {
    int64_t entries = 0;
    int64_t sparse_dimensions = 0;
    int64_t elements = 0;  // of the whole tensor, if it were dense
    int64_t type = 0;
};

SparseForm form_of(const at::Tensor& tensor) {
    return {tensor._nnz(), tensor.sparse_dim(),
            std::accumulate(tensor.sizes().begin(), tensor.sizes().end(), int64_t{1}, std::multiplies<>()),
            static_cast<int64_t>(tensor.scalar_type())};
}

// The sum of all members' sparse tensors, in the order of ranks. It uses three tags, each of them once.
at::Tensor sum_of_all(RailRun& run, rail::Group& group, const at::Tensor& tensor, uint32_t tag, int64_t timeout_ns) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor mine = tensor.detach().coalesce();
    const at::Tensor indices = mine.indices().contiguous();
    const at::Tensor values = mine.values().contiguous();
    std::vector<SparseForm> forms(static_cast<size_t>(group.size()));
    SparseForm& own = forms[static_cast<size_t>(group.me())];
    own = form_of(mine);
    Operations first;
    Operations second;
    for (int rank = 0; rank < group.size(); ++rank) {
        if (rank == group.me())
            continue;
        first.push_back(sending(&own, sizeof(own), rank, tag, timeout_ns));
        first.push_back(receiving(&forms[static_cast<size_t>(rank)], sizeof(own), rank, tag, timeout_ns));
    }
    run.await(group, first);
    std::vector<std::pair<at::Tensor, at::Tensor>> all;
    for (int rank = 0; rank < group.size(); ++rank) {
        const SparseForm& theirs = forms[static_cast<size_t>(rank)];
        TORCH_CHECK(theirs.elements == own.elements && theirs.type == own.type &&
                        theirs.sparse_dimensions == own.sparse_dimensions && theirs.entries >= 0,
                    run.name(), " failed: rank ", rank, " of the group brings a sparse tensor of ", theirs.elements,
                    " elements of type ", static_cast<at::ScalarType>(theirs.type), ", rank ", group.me(), " one of ",
                    own.elements, " of type ", mine.scalar_type(), "; give all ranks tensors of one shape and type.");
        if (rank == group.me()) {
            all.emplace_back(indices, values);
            continue;
        }
        std::vector<int64_t> shape = values.sizes().vec();
        shape[0] = theirs.entries;
        all.emplace_back(at::empty({own.sparse_dimensions, theirs.entries}, indices.options()),
                         at::empty(shape, values.options()));
        const auto exchange = [&](const at::Tensor& ours, const at::Tensor& theirs, uint32_t tag) {
            second.push_back(sending(ours.const_data_ptr(), ours.nbytes(), rank, tag, timeout_ns));
            second.push_back(receiving(theirs.mutable_data_ptr(), theirs.nbytes(), rank, tag, timeout_ns));
        };
        exchange(indices, all.back().first, tag + 1);
        exchange(values, all.back().second, tag + 2);
    }
    run.await(group, second);
    at::Tensor sum;
    for (const auto& [their_indices, their_values] : all) {
        const at::Tensor one = at::sparse_coo_tensor(their_indices, their_values, mine.sizes(), mine.options());
        sum = sum.defined() ? sum.add(one).coalesce() : one.coalesce();
    }
    return sum;
}

}  // namespace

RailBackend::WorkPointer RailBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_splits,
                                                    std::vector<int64_t>& input_splits,
                                                    const ::c10d::AllToAllOptions& options) {
    Draft made = draft("rail:all_to_all", options.timeout, {output});
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), made.title, ": invalid tensor type (",
                output.scalar_type(), " and ", input.scalar_type(), "); input and output have one type.");
    check_splits(input_splits, input, size_, made.title);
    check_splits(output_splits, output, size_, made.title);
    void* to = to_write(*made.run, output, /*contents=*/false, made.title);
    const void* from = to_read_apart(*made.run, input, {output}, nullptr, made.title);
    made.parts.emplace_back([inputs = pieces_of(const_cast<void*>(from), input, input_splits, size_),
                             outputs = pieces_of(to, output, output_splits, size_), dtype = dtype_of(input),
                             limit = made.timeout_ns](rail::Group& group, rail::Done done) mutable {
        return group.all_to_all(std::move(inputs), std::move(outputs), limit, std::move(done), dtype);
    });
    return launch(std::move(made), OpType::ALLTOALL_BASE, {input});
}

RailBackend::WorkPointer RailBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const ::c10d::AllToAllOptions& options) {
    Draft made = draft("rail:all_to_all", options.timeout, outputs);
    for (const Tensors* list : {&outputs, &inputs}) {
        TORCH_CHECK(list->size() == static_cast<size_t>(size_), made.title, ": a list of ", list->size(),
                    " tensors does not fit a group of ", size_, " ranks; give one for each.");
    }
    std::vector<rail::Piece> to;
    std::vector<rail::Piece> from;
    for (const at::Tensor& output : outputs)
        to.push_back({to_write(*made.run, output, /*contents=*/false, made.title), output.nbytes()});
    for (const at::Tensor& input : inputs) {
        const void* data = to_read_apart(*made.run, input, outputs, nullptr, made.title);
        from.push_back({const_cast<void*>(data), input.nbytes()});
    }
    made.parts.emplace_back([from = std::move(from), to = std::move(to), dtype = dtype_of(inputs[0]),
                             limit = made.timeout_ns](rail::Group& group, rail::Done done) mutable {
        return group.all_to_all(std::move(from), std::move(to), limit, std::move(done), dtype);
    });
    return launch(std::move(made), OpType::ALLTOALL, inputs);
}

// Returns the first of four tags that nothing else uses. A caller's tag is an int and not negative.
uint32_t RailBackend::next_tags() {
    return rail::kTagsUsedOnce | (4 * exchanges_++ & (rail::kTagsUsedOnce - 1));
}

RailBackend::WorkPointer RailBackend::allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
    Draft made = draft("rail:sparse_all_reduce", options.timeout, tensors);
    const at::Tensor tensor = only(tensors, made.title);
    TORCH_CHECK(tensor.layout() == at::kSparse, made.title, " takes sparse COO tensors, but was given a ",
                tensor.layout(), " one; convert it with .to_sparse_coo().");
    TORCH_CHECK(options.reduceOp == ::c10d::ReduceOp::SUM, made.title,
                " can only SUM; scale the sum afterwards, or make the tensor dense.");
    const c10::intrusive_ptr<RailWork> work = work_of(made, OpType::_ALLREDUCE_SPARSE, tensors);
    const uint32_t tag = next_tags();
    Pool::instance().run([run = made.run, engine = engine_, group = group_, tensor, tag, limit = made.timeout_ns] {
        const Stretch stretch;
        if (!stretch)
            return;
        at::Tensor sum;
        std::exception_ptr error;
        try {
            sum = sum_of_all(*run, *group, tensor.cpu(), tag, limit);
        } catch (...) {
            error = std::current_exception();
        }
        run->conclude([&] { const_cast<at::Tensor&>(tensor).copy_(sum); }, error);
    });
    return work;
}

// Rank 0 hears from all other ranks and answers. So only rank 0 can name the ranks that did not come.
void RailBackend::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
    const WithoutGil released;
    const char* const title = "rail:monitored_barrier";
    const uint32_t tag = next_tags();
    const auto exchange = [&](const std::function<RailRun::Start(int64_t timeout_ns)>& part) {
        Draft made = draft(title, options.timeout, {});
        made.parts.push_back(part(made.timeout_ns));
        return launch(std::move(made), OpType::BARRIER, {});
    };
    if (rank_ != 0) {
        const WorkPointer here = exchange([&](int64_t limit) { return sending(nullptr, 0, 0, tag, limit); });
        const WorkPointer answer = exchange([&](int64_t limit) { return receiving(nullptr, 0, 0, tag, limit); });
        try {
            here->wait();
            answer->wait();
        } catch (const c10::DistError& error) {
            std::rethrow_exception(backend_error(not_answered(rank_) + error.what_without_backtrace()));
        }
        return;
    }
    const auto begun = Clock::now();
    const Milliseconds limit = options.timeout == ::c10d::kUnsetTimeout ? Milliseconds(timeout_ms_) : options.timeout;
    std::vector<WorkPointer> arrivals;
    for (int rank = 1; rank < size_; ++rank)
        arrivals.push_back(exchange([&](int64_t limit) { return receiving(nullptr, 0, rank, tag, limit); }));
    std::vector<int> passed, missing;
    std::string first_error;
    bool late = false;
    for (int rank = 1; rank < size_ && !late && (wait_all_ranks || missing.empty()); ++rank) {
        late = !wait_all_ranks && Clock::now() - begun >= limit;
        try {
            if (!late)
                arrivals[static_cast<size_t>(rank) - 1]->wait();
            passed.push_back(rank);
        } catch (const c10::DistError& error) {
            missing.push_back(rank);
            if (first_error.empty())
                first_error = std::string(kOriginal) + error.what_without_backtrace();
        }
    }
    if (late || !missing.empty()) {
        for (const WorkPointer& arrival : arrivals)
            arrival->abort();
        if (late)
            passed.pop_back();
        const std::string said = late ? ran_out(passed, limit) : not_passed(missing, limit);
        std::rethrow_exception(backend_error(said + " (" + title + " in group " + identity() + ")" + first_error));
    }
    std::vector<WorkPointer> answers;
    for (int rank = 1; rank < size_; ++rank)
        answers.push_back(exchange([&](int64_t limit) { return sending(nullptr, 0, rank, tag, limit); }));
    for (const WorkPointer& answer : answers)
        answer->wait();
}

RailBackend::WorkPointer RailBackend::send(Tensors& tensors, int destination, int tag) {
    Draft made = draft("rail:send", ::c10d::kUnsetTimeout, tensors);
    const at::Tensor& tensor = only(tensors, made.title);
    TORCH_CHECK(tag >= 0, made.title, ": a tag is not negative, but ", tag, " was given.");
    const void* data = to_read(*made.run, tensor, made.title);
    made.parts.push_back(
        sending(data, {tensor.nbytes(), dtype_of(tensor)}, destination, static_cast<uint32_t>(tag), made.timeout_ns));
    return launch(std::move(made), OpType::SEND, tensors);
}

RailBackend::WorkPointer RailBackend::receive(Tensors& tensors, int source, int tag, const char* title, OpType type) {
    Draft made = draft(title, ::c10d::kUnsetTimeout, tensors);
    const at::Tensor& tensor = only(tensors, made.title);
    TORCH_CHECK(tag >= 0, made.title, ": a tag is not negative, but ", tag, " was given.");
    // The message may be shorter. Then the rest keeps the caller's values.
    void* data = to_write(*made.run, tensor, /*contents=*/true, made.title);
    made.run->source = source;
    made.parts.push_back(receiving(data, {tensor.nbytes(), dtype_of(tensor)}, source, static_cast<uint32_t>(tag),
                                   made.timeout_ns, &made.run->source));
    return launch(std::move(made), type, tensors);
}

RailBackend::WorkPointer RailBackend::recv(Tensors& tensors, int source, int tag) {
    TORCH_CHECK(source >= 0, "rail:recv: there is no rank ", source, " in a group of ", size_, ".");
    return receive(tensors, source, tag, "rail:recv", OpType::RECV);
}

RailBackend::WorkPointer RailBackend::recvAnysource(Tensors& tensors, int tag) {
    return receive(tensors, -1, tag, "rail:recvAnySource", OpType::RECVANYSOURCE);
}

}  // namespace taskd::comm
