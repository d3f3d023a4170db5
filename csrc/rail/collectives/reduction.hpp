// All-reduce, reduce-scatter and reduce: every element has an owner, who gets it from all ranks and reduces it in the
// order of ranks.
//
// Why direct: a ring moves the same bytes, but it reduces in an order that depends on where an element lies, so that
// another bucket or chunk would be another result. Here only who owns an element differs, never how it is reduced.
//
// Large operations: each owner has a slice, cut into chunks. While it receives chunk k + 1 it reduces chunk k, and the
// result leaves at once for those who need it. The result of a chunk is written where this rank's own contribution to
// it lay; that its first bytes come proves that the owner has that contribution.
//
// Small ones: one hop. Each rank that needs the result owns all of it.
//
// Does not: do arithmetic (reduce/reduce.hpp).
#pragma once

#include <vector>

#include "rail/collectives/operation.hpp"

namespace taskd::rail {

struct ReductionPlan {
    struct Range {
        void* memory = nullptr;
        size_t bytes = 0;
        bool is_used = false;
    };

    Dtype dtype = Dtype::kFloat32;
    Reduction reduction = Reduction::kSum;
    std::vector<Range> contributions;  // by owner: what this rank gives; its own included
    std::vector<Range> results;        // by owner: where this rank takes the result to
    std::vector<int> takers;           // who takes this rank's result
    void* output = nullptr;            // where this rank reduces to; null: to staging, for the takers only
    bool is_whole = false;             // in one chunk; what it reduces to is still being sent, so it waits for that
};

// `data` of `bytes` on every rank.
ReductionPlan plan_all_reduce(int me, int size, void* data, size_t count, Dtype dtype, Reduction reduction);
ReductionPlan plan_reduce_scatter(int me, const std::vector<const void*>& inputs, void* output, size_t count,
                                  Dtype dtype, Reduction reduction);
ReductionPlan plan_reduce(int me, int size, const void* input, void* output, size_t count, Dtype dtype,
                          Reduction reduction, int root);

class ReductionOperation : public Operation {
  public:
    ReductionOperation(Circle& circle, uint64_t sequence, const Form& form, ReductionPlan plan);

  protected:
    void begin() override;
    void advance() override;
    void on_sent(int member, Phase phase, uint32_t index) override;
    void on_arrived(int member, Phase phase, uint32_t index) override;
    void on_beginning(int member, Phase phase, uint32_t index) override;
    void let_go() override;

  private:
    void open_slice();
    void open_contribution(int owner, size_t chunk);
    bool may_reduce() const;
    void reduce_next();
    void take_back(int owner, uint32_t index);

    char* given(int owner) const { return static_cast<char*>(plan_.contributions[static_cast<size_t>(owner)].memory); }

    const ReductionPlan plan_;
    size_t slice_bytes_ = 0;  // of this rank's own
    size_t chunk_ = 0;
    uint32_t chunks_ = 0;
    uint32_t ring_ = 0;
    uint32_t reduced_ = 0;
    uint32_t given_open_ = 0;        // contributions that are still read from this rank's memory
    std::vector<uint32_t> missing_;  // by place in the ring: contributions that have not come
    std::vector<uint32_t> untaken_;  // the same: takers who have not got what lies in staging
    std::vector<const void*> sources_;
    std::vector<std::vector<bool>> gone_;  // by owner and chunk: this rank's contribution is not read any more
    char* spare_ = nullptr;                // where results are made that only takers see
    Staging::Block staging_;
};

}  // namespace taskd::rail
