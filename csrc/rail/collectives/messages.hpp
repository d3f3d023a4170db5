// The numbers of messages between two members, and the order of receives that take from any member.
//
// Why: collectives are counted, but a message belongs to the n-th receive of its tag from its sender, whatever else the
// two ranks do. A receive from any member takes such a number only once a message is there. Until then, later receives
// of the same tag wait in line behind it.
//
// Does not: lock, or keep operations alive (the group does).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "rail/collectives/exchange.hpp"
#include "rail/collectives/receive.hpp"

namespace taskd::rail {

class Messages : public Postbox {
  public:
    explicit Messages(Circle& circle) : circle_(circle) {}

    // Each makes an operation that still has to be started.
    std::shared_ptr<Operation> send(const void* data, Extent extent, int to, uint32_t tag);
    std::shared_ptr<Operation> receive(void* data, Extent extent, int from, uint32_t tag, int* source);

    // Call it for every operation that is over.
    void ended(const Operation& operation);

    uint64_t next_number(int member, uint32_t tag) const override;
    void taken(ReceiveOperation& operation, int member) override;

  private:
    using Line = std::deque<ReceiveOperation*>;

    void go_on(uint32_t tag);

    Circle& circle_;
    std::map<std::pair<int, uint32_t>, uint32_t> sent_;
    std::map<std::pair<int, uint32_t>, uint32_t> received_;
    std::map<uint32_t, Line> lines_;  // the first one takes from any member, and listens
    uint32_t receives_ = 0;
};

}  // namespace taskd::rail
