#include "rail/collectives/reduction.hpp"

#include <algorithm>
#include <cstring>

#include "rail/reduce/reduce.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kAlignment = 64;  // chunks and slices are aligned to cache lines and elements

size_t rounded_up(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The chunk size is the same on all ranks, because it follows from sizes that they share.
size_t chunk_of(size_t slice_bytes, int size) {
    const size_t staged = static_cast<size_t>(size - 1) * tuning::kStagedAhead;
    const size_t affordable = std::clamp(tuning::kStagingBytes / staged, tuning::kSmallestChunk, tuning::kLargestChunk);
    const size_t overlapping = std::max(slice_bytes / tuning::kChunksPerSlice, tuning::kSmallestChunk);
    return rounded_up(std::min(affordable, overlapping));
}

// The slice of one of `owners`: all slices are as equal as whole cache lines allow. Nothing is left for the last owners
// of a short range.
ReductionPlan::Range slice_of(void* memory, size_t bytes, int owners, int index) {
    const size_t each = rounded_up((bytes + static_cast<size_t>(owners) - 1) / static_cast<size_t>(owners));
    const size_t first = std::min(each * static_cast<size_t>(index), bytes);
    const size_t last = std::min(first + each, bytes);
    return {static_cast<char*>(memory) + first, last - first, last > first};
}

bool is_small(size_t bytes, int size) {
    return bytes <= kEagerBytes && bytes * static_cast<size_t>(size) <= tuning::kSmallBytes;
}

ReductionPlan empty_plan(int size, Dtype dtype, Reduction reduction) {
    ReductionPlan plan;
    plan.dtype = dtype;
    plan.reduction = reduction;
    plan.contributions.resize(static_cast<size_t>(size));
    plan.results.resize(static_cast<size_t>(size));
    return plan;
}

}  // namespace

// ---- who owns what

ReductionPlan plan_all_reduce(int me, int size, void* data, size_t count, Dtype dtype, Reduction reduction) {
    const size_t bytes = count * size_of(dtype);
    ReductionPlan plan = empty_plan(size, dtype, reduction);
    plan.is_whole = is_small(bytes, size);
    for (int owner = 0; owner < size; ++owner) {
        const auto place = static_cast<size_t>(owner);
        plan.contributions[place] =
            plan.is_whole ? ReductionPlan::Range{data, bytes, true} : slice_of(data, bytes, size, owner);
        if (!plan.is_whole && owner != me) {
            plan.results[place] = plan.contributions[place];
            plan.takers.push_back(owner);
        }
    }
    plan.output = plan.contributions[static_cast<size_t>(me)].memory;
    return plan;
}

ReductionPlan plan_reduce_scatter(int, const std::vector<const void*>& inputs, void* output, size_t count, Dtype dtype,
                                  Reduction reduction) {
    ReductionPlan plan = empty_plan(static_cast<int>(inputs.size()), dtype, reduction);
    for (size_t owner = 0; owner < inputs.size(); ++owner)
        plan.contributions[owner] = {const_cast<void*>(inputs[owner]), count * size_of(dtype), true};
    plan.output = output;
    return plan;
}

// Reduces to the root directly, or through the other ranks, so that the root receives each element once and not from
// every rank.
ReductionPlan plan_reduce(int me, int size, const void* input, void* output, size_t count, Dtype dtype,
                          Reduction reduction, int root) {
    const size_t bytes = count * size_of(dtype);
    ReductionPlan plan = empty_plan(size, dtype, reduction);
    const auto root_place = static_cast<size_t>(root);
    void* const given = const_cast<void*>(input);
    if (size <= 2 || bytes <= kEagerBytes) {
        plan.contributions[root_place] = {given, bytes, true};
        plan.output = me == root ? output : nullptr;
        return plan;
    }
    for (int owner = 0, index = 0; owner < size; ++owner) {
        if (owner == root)
            continue;
        plan.contributions[static_cast<size_t>(owner)] = slice_of(given, bytes, size - 1, index);
        if (me == root)
            plan.results[static_cast<size_t>(owner)] = slice_of(output, bytes, size - 1, index);
        ++index;
    }
    if (me != root)
        plan.takers.push_back(root);
    return plan;
}

// ---- the operation

ReductionOperation::ReductionOperation(Circle& circle, uint64_t sequence, const Form& form, ReductionPlan plan)
    : Operation(circle, sequence, form), plan_(std::move(plan)) {}

void ReductionOperation::open_contribution(int owner, size_t chunk) {
    const ReductionPlan::Range& range = plan_.contributions[static_cast<size_t>(owner)];
    Lane& lane = out(kContribution, owner);
    open_lane(lane, range.memory, range.bytes, chunk, tuning::kAhead);
    set_limit(lane, lane.count);
    given_open_ += lane.count;
    gone_[static_cast<size_t>(owner)].assign(lane.count, false);
    if (plan_.results[static_cast<size_t>(owner)].is_used) {
        Lane& result = in(kResult, owner);
        open_lane(result, plan_.results[static_cast<size_t>(owner)].memory, range.bytes, chunk, tuning::kAhead);
        set_limit(result, result.count);
    }
}

// This rank is an owner: makes room for what comes from the others, and opens lanes for what leaves.
void ReductionOperation::open_slice() {
    const auto others = static_cast<size_t>(circle_.size - 1);
    slice_bytes_ = plan_.contributions[static_cast<size_t>(circle_.me)].bytes;
    chunk_ = plan_.is_whole ? std::max<size_t>(slice_bytes_, 1) : chunk_of(slice_bytes_, circle_.size);
    chunks_ = pieces_of(slice_bytes_, chunk_);
    ring_ = std::min(chunks_, tuning::kStagedAhead);
    const size_t lane_bytes = rounded_up(std::min(chunk_, std::max<size_t>(slice_bytes_, 1))) * ring_;
    const bool spares = plan_.output == nullptr;
    staging_ = circle_.staging.take(lane_bytes * (others + (spares ? 1 : 0)));
    char* room = staging_.memory.get();
    for (int member = 0; member < circle_.size; ++member) {
        if (member == circle_.me)
            continue;
        Lane& lane = in(kContribution, member);
        open_lane(lane, room, slice_bytes_, chunk_, ring_);
        lane.ring = ring_;
        set_limit(lane, ring_);
        room += lane_bytes;
    }
    spare_ = spares ? room : nullptr;
    for (const int taker : plan_.takers) {
        Lane& lane = out(kResult, taker);
        open_lane(lane, spares ? spare_ : plan_.output, slice_bytes_, chunk_, tuning::kAhead);
        lane.ring = spares ? ring_ : 0;
    }
    missing_.assign(ring_, static_cast<uint32_t>(others));
    untaken_.assign(ring_, 0);
    sources_.resize(static_cast<size_t>(circle_.size));
    expect(chunks_);
}

void ReductionOperation::begin() {
    gone_.resize(static_cast<size_t>(circle_.size));
    if (plan_.contributions[static_cast<size_t>(circle_.me)].is_used)
        open_slice();
    for (int owner = 0; owner < circle_.size; ++owner) {
        const ReductionPlan::Range& range = plan_.contributions[static_cast<size_t>(owner)];
        if (owner != circle_.me && range.is_used)
            open_contribution(owner,
                              plan_.is_whole ? std::max<size_t>(range.bytes, 1) : chunk_of(range.bytes, circle_.size));
    }
}

bool ReductionOperation::may_reduce() const {
    if (reduced_ == chunks_ || missing_[reduced_ % ring_] != 0)
        return false;
    if (plan_.is_whole && given_open_ != 0)
        return false;
    return untaken_[reduced_ % ring_] == 0;
}

void ReductionOperation::reduce_next() {
    const uint32_t place = reduced_ % ring_;
    const size_t at = reduced_ * chunk_;
    const size_t bytes = reduced_ + 1 < chunks_ ? chunk_ : slice_bytes_ - at;
    for (int member = 0; member < circle_.size; ++member)
        sources_[static_cast<size_t>(member)] =
            member == circle_.me ? given(member) + at : in(kContribution, member).at(reduced_);
    char* const to = spare_ != nullptr ? spare_ + place * chunk_ : static_cast<char*>(plan_.output) + at;
    reduce(plan_.dtype, plan_.reduction, sources_.data(), circle_.size, to, bytes / size_of(plan_.dtype));
    missing_[place] = static_cast<uint32_t>(circle_.size - 1);
    if (spare_ != nullptr)
        untaken_[place] = static_cast<uint32_t>(plan_.takers.size());
    ++reduced_;
    one_ended();
    for (int member = 0; member < circle_.size; ++member)
        if (member != circle_.me)
            set_limit(in(kContribution, member), reduced_ + ring_);
    for (const int taker : plan_.takers)
        set_limit(out(kResult, taker), reduced_);
}

// Reduces one chunk at a time: it leaves before the next one is reduced.
void ReductionOperation::advance() {
    if (!may_reduce())
        return;
    reduce_next();
    ask_again();
}

void ReductionOperation::on_sent(int member, Phase phase, uint32_t index) {
    if (phase == kContribution) {
        gone_[static_cast<size_t>(member)][index] = true;
        --given_open_;
    } else if (spare_ != nullptr) {
        --untaken_[index % ring_];
    }
}

void ReductionOperation::on_arrived(int member, Phase phase, uint32_t index) {
    if (phase == kContribution)
        --missing_[index % ring_];
    else
        take_back(member, index);
}

void ReductionOperation::on_beginning(int member, Phase phase, uint32_t index) {
    if (phase == kResult)
        take_back(member, index);
}

// The owner's result is here, so the owner has had this rank's contribution; sent() may come late.
void ReductionOperation::take_back(int owner, uint32_t index) {
    std::vector<bool>& gone = gone_[static_cast<size_t>(owner)];
    if (gone[index])
        return;
    gone[index] = true;
    --given_open_;
    release(owner, kContribution, index);
}

void ReductionOperation::let_go() {
    circle_.staging.give(std::move(staging_));
}

}  // namespace taskd::rail
