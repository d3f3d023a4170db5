// The numbers of messages between two members, and the order of receives that take from any member.
//
// Why: collectives are counted, but a message belongs to the n-th receive of its tag from its sender, whatever else the
// two ranks do. A receive from any member takes such a number only once a message is there. Until then, later receives
// of the same tag wait in line behind it.
//
// A tag's count must live as long as the group, because the other member counts on from it. So a group has a bound: it
// refuses messages under ever new tags. Tags that are used once (kTagsUsedOnce) need no count.
//
// Does not: lock, or keep operations alive (the group does).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "rail/collectives/exchange.hpp"
#include "rail/collectives/receive.hpp"

namespace taskd::rail {

// Counts of one direction: of each tag and member. This is more than any script has use for.
constexpr size_t kCountsKept = size_t{1} << 20;

class Messages : public Postbox {
  public:
    explicit Messages(Circle& circle, size_t most_counts = kCountsKept) : circle_(circle), most_counts_(most_counts) {}

    // Why there can be no further message of this tag to or from this member (-1: any); empty if there can be one.
    std::string why_not_send(int to, uint32_t tag) const { return why_not(sent_, to, tag); }

    std::string why_not_receive(int from, uint32_t tag) const { return why_not(received_, from, tag); }

    // Each makes an operation that still has to be started.
    std::shared_ptr<Operation> send(const void* data, Extent extent, int to, uint32_t tag);
    std::shared_ptr<Operation> receive(void* data, Extent extent, int from, uint32_t tag, int* source);

    // Call it for every operation that is over.
    void ended(const Operation& operation);

    uint64_t next_number(int member, uint32_t tag) const override;
    void taken(ReceiveOperation& operation, int member) override;

  private:
    using Line = std::deque<ReceiveOperation*>;
    using Counts = std::map<std::pair<int, uint32_t>, uint32_t>;  // by member and tag

    std::string why_not(const Counts& counts, int member, uint32_t tag) const;
    void go_on(uint32_t tag);

    Circle& circle_;
    const size_t most_counts_;
    Counts sent_;
    Counts received_;
    std::map<uint32_t, Line> lines_;  // the first one takes from any member, and listens
    uint32_t receives_ = 0;
};

}  // namespace taskd::rail
