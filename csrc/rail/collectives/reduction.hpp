// All-reduce, reduce-scatter and reduce: every element has an owner. The owner gets it from all ranks and reduces it in
// the order of ranks.
//
// Why direct: a ring moves the same bytes, but it reduces in an order that depends on where an element lies. So another
// bucket or chunk would give another result. Here only the owner of an element differs, never how it is reduced.
//
// Large operations: each owner has a slice, cut into chunks. While it receives chunk k + 1 it reduces chunk k, and the
// result is sent at once to the ranks that need it. The result of a chunk is written where this rank's own contribution
// to it lay. When the first bytes of that result come, this proves that the owner has that contribution.
//
// Small operations: one hop. Each rank that needs the result owns all of it.
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
    std::vector<Range> contributions;  // by owner: what this rank gives, also to itself
    std::vector<Range> results;        // by owner: where this rank puts the result
    std::vector<int> takers;           // the ranks that take this rank's result
    void* output = nullptr;            // where this rank reduces to; null: to staging, only for the takers
    bool is_whole = false;             // one chunk; its target memory is still being sent, so the reduction waits
};

// `data` of `count` elements on every rank.
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
    size_t slice_bytes_ = 0;  // of this rank's own slice
    size_t chunk_ = 0;
    uint32_t chunks_ = 0;
    uint32_t ring_ = 0;
    uint32_t reduced_ = 0;
    uint32_t given_open_ = 0;        // contributions still being read from this rank's memory
    std::vector<uint32_t> missing_;  // by place in the ring: contributions that have not come yet
    std::vector<uint32_t> untaken_;  // likewise: takers that have not got what lies in staging
    std::vector<const void*> sources_;
    std::vector<std::vector<bool>> gone_;  // by owner and chunk: this rank's contribution is not read any more
    char* spare_ = nullptr;                // memory for results that only takers see
    Staging::Block staging_;
};

}  // namespace taskd::rail
