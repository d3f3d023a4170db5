// The calls of a group, turned into operations; group.hpp says what and why.
#include "rail/collectives/group.hpp"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "rail/collectives/exchange.hpp"
#include "rail/collectives/messages.hpp"
#include "rail/collectives/reduction.hpp"
#include "rail/reduce/reduce.hpp"

namespace taskd::rail {
namespace {

class Hold {
  public:
    explicit Hold(Gate& gate) : gate_(gate) { gate_.lock(); }

    ~Hold() { gate_.unlock(); }

    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

  private:
    Gate& gate_;
};

Form form_of(Kind kind, Dtype dtype, uint64_t count, int root = -1, Reduction reduction = Reduction::kSum) {
    Form form;
    form.kind = static_cast<uint8_t>(kind);
    form.dtype = static_cast<uint8_t>(dtype);
    form.reduction = static_cast<uint8_t>(reduction);
    form.root = root;
    form.count = count;
    return form;
}

Form form_of(Kind kind, Extent extent, int root = -1) {
    return form_of(kind, extent.dtype, extent.bytes / size_of(extent.dtype), root);
}

std::string why_not(Dtype dtype, Reduction reduction) {
    if (can_reduce(dtype, reduction))
        return "";
    std::string text = std::string("there is no reduction ") + name_of(reduction) + " of " + name_of(dtype);
    if (reduction == Reduction::kAverage)
        return text + ": an average needs a floating point type; use SUM and divide";
    return text + ": use another reduction, or convert the elements before";
}

}  // namespace

struct Group::State : Circle {
    State(Transport& transport, Gate& gate, const std::string& identity, int me, int size)
        : Circle(transport, identity, me, size), gate(gate), messages(*this) {}

    void ended(Operation& operation, const Failure* failure) override {
        messages.ended(operation);
        const auto found = operations.find(operation.handle);
        if (found == operations.end())
            return;
        tell(std::move(operation.done), failure, std::move(found->second));
        operations.erase(found);
    }

    // Also keeps the ended operation alive until no thread can be within a call to it.
    void tell(Done done, const Failure* failure, std::shared_ptr<Operation> operation = nullptr) {
        if (failure != nullptr)
            transport.after_unlock(
                [done = std::move(done), operation = std::move(operation), told = *failure] { done(&told); });
        else
            transport.after_unlock([done = std::move(done), operation = std::move(operation)] { done(nullptr); });
    }

    uint64_t refuse(Done done, std::string why) {
        const Failure failure{Failure::Code::kUsage, std::move(why)};
        tell(std::move(done), &failure);
        return 0;
    }

    // Why this root is impossible; empty if it is valid.
    std::string why_not_root(int root) const {
        if (root >= 0 && root < size)
            return "";
        return "rank " + std::to_string(root) + " is not in group " + identity + ": it has the ranks 0 to " +
               std::to_string(size - 1);
    }

    uint64_t start(std::shared_ptr<Operation> operation, int64_t timeout_ns, Done done) {
        const uint64_t handle = ++last_handle;
        operation->handle = handle;
        operation->done = std::move(done);
        operations.emplace(handle, operation);
        operation->start(timeout_ns);
        return handle;
    }

    // True if the group has been aborted; then `done` has been told so.
    bool is_closed(Done& done) {
        if (!aborted)
            return false;
        tell(std::move(done), &abortion);
        return true;
    }

    uint64_t alone(Done done) {
        ++next_sequence;
        tell(std::move(done), nullptr);
        return 0;
    }

    uint64_t reduction(const Form& form, ReductionPlan plan, int64_t timeout_ns, Done done) {
        return start(std::make_shared<ReductionOperation>(*this, next_sequence++, form, std::move(plan)), timeout_ns,
                     std::move(done));
    }

    uint64_t exchange(const Form& form, ExchangePlan plan, int64_t timeout_ns, Done done) {
        return start(std::make_shared<ExchangeOperation>(*this, next_sequence++, form, std::move(plan)), timeout_ns,
                     std::move(done));
    }

    // Copies what a rank gets from itself. The caller does it without the gate, because it may be much; abort() waits
    // for it. The two places may be the same memory; otherwise they do not overlap.
    void copy_own(void* to, const void* from, size_t bytes) {
        const std::shared_lock<std::shared_mutex> hold(copying);
        if (to != from && bytes != 0 && !aborted)
            std::memcpy(to, from, bytes);
    }

    void end_all(const Failure& failure) {
        while (!operations.empty()) {
            const std::shared_ptr<Operation> operation = operations.begin()->second;
            operation->fail(failure);
        }
    }

    Gate& gate;
    Messages messages;
    std::map<uint64_t, std::shared_ptr<Operation>> operations;
    uint64_t last_handle = 0;
    uint64_t next_sequence = 0;
    std::shared_mutex copying;
    std::atomic<bool> aborted{false};
    Failure abortion{Failure::Code::kAborted, ""};
};

Group::Group(Transport& transport, Gate& gate, std::string identity, int me, int size)
    : identity_(std::move(identity)),
      me_(me),
      size_(size),
      state_(std::make_unique<State>(transport, gate, identity_, me, size)) {}

Group::~Group() {
    abort("group " + identity_ + " is no more");
}

// ---- reductions

uint64_t Group::all_reduce(void* data, size_t count, Dtype dtype, Reduction reduction, int64_t timeout_ns, Done done) {
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    if (std::string why = why_not(dtype, reduction); !why.empty())
        return state_->refuse(std::move(done), std::move(why));
    if (size_ == 1)
        return state_->alone(std::move(done));
    return state_->reduction(form_of(Kind::kAllReduce, dtype, count, -1, reduction),
                             plan_all_reduce(me_, size_, data, count, dtype, reduction), timeout_ns, std::move(done));
}

uint64_t Group::reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, Dtype dtype,
                               Reduction reduction, int64_t timeout_ns, Done done) {
    if (size_ == 1 && inputs.size() == 1)
        state_->copy_own(output, inputs[0], count * size_of(dtype));
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = why_not(dtype, reduction);
    if (inputs.size() != static_cast<size_t>(size_))
        why = "reduce_scatter needs one input for each of the " + std::to_string(size_) + " ranks, not " +
              std::to_string(inputs.size());
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    if (size_ == 1)
        return state_->alone(std::move(done));
    return state_->reduction(form_of(Kind::kReduceScatter, dtype, count, -1, reduction),
                             plan_reduce_scatter(me_, inputs, output, count, dtype, reduction), timeout_ns,
                             std::move(done));
}

uint64_t Group::reduce(const void* input, void* output, size_t count, Dtype dtype, Reduction reduction, int root,
                       int64_t timeout_ns, Done done) {
    if (size_ == 1)
        state_->copy_own(output, input, count * size_of(dtype));
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = why_not(dtype, reduction);
    if (why.empty())
        why = state_->why_not_root(root);
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    if (size_ == 1)
        return state_->alone(std::move(done));
    return state_->reduction(form_of(Kind::kReduce, dtype, count, root, reduction),
                             plan_reduce(me_, size_, input, output, count, dtype, reduction, root), timeout_ns,
                             std::move(done));
}

// ---- exchanges

uint64_t Group::all_gather(const void* input, std::vector<void*> outputs, Extent extent, int64_t timeout_ns,
                           Done done) {
    if (outputs.size() == static_cast<size_t>(size_))
        state_->copy_own(outputs[static_cast<size_t>(me_)], input, extent.bytes);
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    if (outputs.size() != static_cast<size_t>(size_))
        return state_->refuse(std::move(done), "all_gather needs one output for each of the " + std::to_string(size_) +
                                                   " ranks, not " + std::to_string(outputs.size()));
    ExchangePlan plan;
    for (int member = 0; member < size_; ++member) {
        if (member == me_)
            continue;
        plan.outgoing.push_back({member, input, extent.bytes});
        plan.incoming.push_back({member, outputs[static_cast<size_t>(member)], extent.bytes});
    }
    return state_->exchange(form_of(Kind::kAllGather, extent), std::move(plan), timeout_ns, std::move(done));
}

uint64_t Group::broadcast(void* data, Extent extent, int root, int64_t timeout_ns, Done done) {
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    if (std::string why = state_->why_not_root(root); !why.empty())
        return state_->refuse(std::move(done), std::move(why));
    return state_->exchange(form_of(Kind::kBroadcast, extent, root),
                            plan_broadcast(me_, size_, data, extent.bytes, root), timeout_ns, std::move(done));
}

uint64_t Group::gather(const void* input, std::vector<void*> outputs, Extent extent, int root, int64_t timeout_ns,
                       Done done) {
    if (me_ == root && outputs.size() == static_cast<size_t>(size_))
        state_->copy_own(outputs[static_cast<size_t>(me_)], input, extent.bytes);
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = state_->why_not_root(root);
    if (why.empty() && outputs.size() != (me_ == root ? static_cast<size_t>(size_) : 0))
        why = "gather needs one output for each of the " + std::to_string(size_) +
              " ranks on the root and none elsewhere, not " + std::to_string(outputs.size());
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    ExchangePlan plan;
    if (me_ != root)
        plan.outgoing.push_back({root, input, extent.bytes});
    for (int member = 0; me_ == root && member < size_; ++member)
        if (member != me_)
            plan.incoming.push_back({member, outputs[static_cast<size_t>(member)], extent.bytes});
    return state_->exchange(form_of(Kind::kGather, extent, root), std::move(plan), timeout_ns, std::move(done));
}

uint64_t Group::scatter(std::vector<const void*> inputs, void* output, Extent extent, int root, int64_t timeout_ns,
                        Done done) {
    if (me_ == root && inputs.size() == static_cast<size_t>(size_))
        state_->copy_own(output, inputs[static_cast<size_t>(me_)], extent.bytes);
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = state_->why_not_root(root);
    if (why.empty() && inputs.size() != (me_ == root ? static_cast<size_t>(size_) : 0))
        why = "scatter needs one input for each of the " + std::to_string(size_) +
              " ranks on the root and none elsewhere, not " + std::to_string(inputs.size());
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    ExchangePlan plan;
    if (me_ != root)
        plan.incoming.push_back({root, output, extent.bytes});
    for (int member = 0; me_ == root && member < size_; ++member)
        if (member != me_)
            plan.outgoing.push_back({member, inputs[static_cast<size_t>(member)], extent.bytes});
    return state_->exchange(form_of(Kind::kScatter, extent, root), std::move(plan), timeout_ns, std::move(done));
}

uint64_t Group::all_to_all(std::vector<Piece> inputs, std::vector<Piece> outputs, int64_t timeout_ns, Done done,
                           Dtype dtype) {
    const auto places = static_cast<size_t>(size_);
    const auto own = static_cast<size_t>(me_);
    if (inputs.size() == places && outputs.size() == places && inputs[own].bytes == outputs[own].bytes)
        state_->copy_own(outputs[own].data, inputs[own].data, inputs[own].bytes);
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    if (inputs.size() != places || outputs.size() != places)
        return state_->refuse(std::move(done), "all_to_all needs one input and one output for each of the " +
                                                   std::to_string(size_) + " ranks, not " +
                                                   std::to_string(inputs.size()) + " and " +
                                                   std::to_string(outputs.size()));
    if (inputs[own].bytes != outputs[own].bytes)
        return state_->refuse(std::move(done), "all_to_all: this rank sends " + std::to_string(inputs[own].bytes) +
                                                   " bytes to itself, but takes " + std::to_string(outputs[own].bytes));
    ExchangePlan plan;
    for (int member = 0; member < size_; ++member) {
        const auto place = static_cast<size_t>(member);
        if (member == me_)
            continue;
        plan.outgoing.push_back({member, inputs[place].data, inputs[place].bytes});
        plan.incoming.push_back({member, outputs[place].data, outputs[place].bytes});
    }
    return state_->exchange(form_of(Kind::kAllToAll, dtype, 0), std::move(plan), timeout_ns, std::move(done));
}

uint64_t Group::barrier(int64_t timeout_ns, Done done) {
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    ExchangePlan plan;
    for (int member = 0; member < size_; ++member) {
        if (member == me_)
            continue;
        plan.outgoing.push_back({member, nullptr, 0});
        plan.incoming.push_back({member, nullptr, 0});
    }
    return state_->exchange(form_of(Kind::kBarrier, Dtype::kByte, 0), std::move(plan), timeout_ns, std::move(done));
}

// ---- messages

uint64_t Group::send(const void* data, Extent extent, int to, uint32_t tag, int64_t timeout_ns, Done done) {
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = state_->why_not_root(to);
    if (to == me_)
        why = "rank " + std::to_string(me_) + " cannot send a message to itself: copy it";
    if (why.empty())
        why = state_->messages.why_not_send(to, tag);
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    return state_->start(state_->messages.send(data, extent, to, tag), timeout_ns, std::move(done));
}

uint64_t Group::receive(void* data, Extent extent, int from, uint32_t tag, int64_t timeout_ns, int* source, Done done) {
    const Hold hold(state_->gate);
    if (state_->is_closed(done))
        return 0;
    std::string why = from == -1 ? "" : state_->why_not_root(from);
    if (from == me_ || (from == -1 && size_ == 1))
        why = "rank " + std::to_string(me_) + " cannot receive a message from itself: copy it";
    if (why.empty())
        why = state_->messages.why_not_receive(from, tag);
    if (!why.empty())
        return state_->refuse(std::move(done), std::move(why));
    return state_->start(state_->messages.receive(data, extent, from, tag, source), timeout_ns, std::move(done));
}

// ---- ends

void Group::cancel(uint64_t handle, const std::string& reason) {
    state_->gate.urge([&] {
        const auto found = state_->operations.find(handle);
        if (found == state_->operations.end())
            return;
        const std::shared_ptr<Operation> operation = found->second;
        operation->fail({Failure::Code::kAborted, reason});
    });
}

void Group::abort(const std::string& reason) {
    state_->gate.urge([&] {
        if (!state_->aborted) {
            state_->abortion.text = reason;
            state_->aborted = true;
        }
        state_->end_all(state_->abortion);
    });
    const std::lock_guard<std::shared_mutex> nobody_copies(state_->copying);
}

size_t Group::unfinished() {
    const Hold hold(state_->gate);
    return state_->operations.size();
}

}  // namespace taskd::rail
