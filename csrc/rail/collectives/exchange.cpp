#include "rail/collectives/exchange.hpp"

#include <algorithm>

namespace taskd::rail {
namespace {

constexpr size_t kAlignment = 64;

size_t relay_slice(size_t bytes, int owners) {
    const size_t each = (bytes + static_cast<size_t>(owners) - 1) / static_cast<size_t>(owners);
    return (each + kAlignment - 1) / kAlignment * kAlignment;
}

size_t relay_chunk(size_t slice_bytes) {
    return std::clamp(slice_bytes / tuning::kChunksPerSlice / kAlignment * kAlignment, tuning::kSmallestChunk,
                      tuning::kLargestChunk);
}

}  // namespace

ExchangePlan plan_broadcast(int me, int size, void* data, size_t bytes, int root) {
    ExchangePlan plan;
    plan.root = root;
    if (size > 2 && bytes > tuning::kSmallBytes) {
        plan.relayed = data;
        plan.relayed_bytes = bytes;
    } else if (me != root) {
        plan.incoming.push_back({root, data, bytes});
    } else {
        for (int member = 0; member < size; ++member)
            if (member != me)
                plan.outgoing.push_back({member, data, bytes});
    }
    return plan;
}

ExchangeOperation::ExchangeOperation(Circle& circle, uint64_t sequence, const Form& form, ExchangePlan plan)
    : Operation(circle, sequence, form), plan_(std::move(plan)) {}

void ExchangeOperation::begin() {
    for (const ExchangePlan::Transfer& transfer : plan_.incoming)
        open_whole(in(kContribution, transfer.member), transfer.memory, transfer.bytes);
    for (const ExchangePlan::Transfer& transfer : plan_.outgoing)
        open_whole(out(kContribution, transfer.member), transfer.memory, transfer.bytes);
    if (plan_.relayed != nullptr)
        begin_relay();
}

// Opens a lane for the slice of the relayed memory that the owner gets from the root and gives to the others.
void ExchangeOperation::open_relay(Lane& lane, int owner, bool may_go) {
    const size_t each = relay_slice(plan_.relayed_bytes, circle_.size - 1);
    const size_t first = std::min(each * static_cast<size_t>(place_of(owner)), plan_.relayed_bytes);
    const size_t bytes = std::min(each, plan_.relayed_bytes - first);
    if (bytes == 0)
        return;
    open_lane(lane, static_cast<char*>(plan_.relayed) + first, bytes, relay_chunk(each), tuning::kAhead);
    if (may_go)
        set_limit(lane, lane.count);
}

void ExchangeOperation::begin_relay() {
    for (int member = 0; member < circle_.size; ++member) {
        if (member == circle_.me || member == plan_.root)
            continue;
        if (circle_.me == plan_.root) {
            open_relay(out(kContribution, member), member, true);
        } else {
            open_relay(in(kResult, member), member, true);
            open_relay(out(kResult, member), circle_.me, false);
        }
    }
    if (circle_.me == plan_.root)
        return;
    Lane& own = in(kContribution, plan_.root);
    open_relay(own, circle_.me, true);
    here_.assign(own.count, false);
}

void ExchangeOperation::on_arrived(int, Phase phase, uint32_t index) {
    if (phase == kContribution && !here_.empty())
        here_[index] = true;
}

void ExchangeOperation::advance() {
    const uint32_t before = passed_;
    while (passed_ < here_.size() && here_[passed_])
        ++passed_;
    if (passed_ == before)
        return;
    for (int member = 0; member < circle_.size; ++member)
        if (member != circle_.me && member != plan_.root)
            set_limit(out(kResult, member), passed_);
}

MessageOperation::MessageOperation(Circle& circle, uint64_t sequence, const Form& form, ExchangePlan plan,
                                   std::string title)
    : ExchangeOperation(circle, sequence, form, std::move(plan)), title_(std::move(title)) {
    announces_ = true;
}

}  // namespace taskd::rail
