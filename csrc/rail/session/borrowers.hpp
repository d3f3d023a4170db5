// The users of message memory at this moment: the links that read or write it, as Outbox and Inbox see them.
//
// Why: while a link sends or receives a frame, it holds the address of memory that it does not own. Only the owner of
// that memory knows when it goes, and what the other side says must never decide whether a link still uses it. So
// before code gives memory back, frees it or replaces it, it calls here.
//
// Does not: own memory, or know why it goes.
#pragma once

#include "rail/io/frame.hpp"

namespace taskd::rail {

struct Outgoing;

class Borrowers {
  public:
    virtual ~Borrowers() = default;
    // After this, no link reads this message's memory.
    virtual void let_go(const Outgoing& message) = 0;
    // After this, no link writes into this message's memory; the rest of its frames is dropped.
    virtual void let_go(const MessageKey& key) = 0;
    // Whether a link writes into this message's memory.
    virtual bool is_written(const MessageKey& key) const = 0;
};

}  // namespace taskd::rail
