// Who reads or writes the memory of messages at this moment: the links, as Outbox and Inbox see them.
//
// Why: a link has the address of memory that is another's while it sends or receives a frame. Only who owns that memory
// knows when it goes, and the other side's word must never decide whether a link is through with it. So whoever gives
// memory back, frees it or puts another in its place calls here first.
//
// Does not: own memory, or know why it goes.
#pragma once

#include "rail/io/frame.hpp"

namespace taskd::rail {

struct Outgoing;

class Borrowers {
  public:
    virtual ~Borrowers() = default;
    // Nobody reads this message's memory any more.
    virtual void let_go(const Outgoing& message) = 0;
    // Nobody writes into this message's memory any more; what is still to come of its frames goes into nothing.
    virtual void let_go(const MessageKey& key) = 0;
    // Somebody does.
    virtual bool is_written(const MessageKey& key) const = 0;
};

}  // namespace taskd::rail
