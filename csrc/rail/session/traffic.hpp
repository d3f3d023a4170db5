// What groups use of a session: messages to the other process and from it, and a check that both run the same
// operations.
//
// It owns what is to be sent (Outbox), what is received (Inbox), and whom to ask for the operations of a group. Failure
// modes: two ranks in different operations under one number do not wait for each other in vain, because every frame
// says which operation it belongs to. An operation that ends takes its memory back from all links at once. A peer that
// offers more messages than any job needs loses its connection.
//
// It calls an operation itself only to say that bytes are about to be written. Everything else is posted as an event,
// and delivered when nothing is half done.
//
// Does not: send, acknowledge, or know the numbers of frames (Sender and Acknowledger do).
#pragma once

#include <cstdint>
#include <unordered_map>

#include "rail/io/link.hpp"
#include "rail/session/borrowers.hpp"
#include "rail/session/host.hpp"
#include "rail/session/inbox.hpp"
#include "rail/session/lifecycle.hpp"
#include "rail/session/outbox.hpp"

namespace taskd::rail {

// A group's operations, by their sequence.
class Roster {
  public:
    virtual ~Roster() = default;
    virtual Party* find(uint64_t sequence) const = 0;
    // The form of this operation, which may have ended a while ago; null: not known.
    virtual const Form* form_of(uint64_t sequence) const = 0;
};

class Traffic {
  public:
    Traffic(BoundHost host, int64_t epoch, Borrowers& borrowers, const Lifecycle& life)
        : host_(host), life_(life), outbox_(epoch, borrowers), inbox_(borrowers, host.pools()) {}

    Outbox& outbox() { return outbox_; }

    const Inbox& inbox() const { return inbox_; }

    // ---- for groups
    void enter(uint64_t group, const Roster& roster, int member) { rosters_[group] = {&roster, member}; }

    void leave(uint64_t group, const Roster& roster);
    void send(Party& party, int member, const MessageKey& key, const void* data, size_t bytes, bool announce);
    void receive(Party& party, int member, const MessageKey& key, void* data, size_t bytes);
    void watch(Party& party, int member, const MessageKey& key);
    void release(const MessageKey& key);
    void describe(const MessageKey& key, const Form& form);
    void forget(Party& party, uint64_t group);
    // Whether this operation waits for something that the other side has not done yet.
    bool awaits(const Party& party, uint64_t group) const;

    // ---- what comes
    // Where the bytes of this frame go; null: they are dropped.
    char* begins(Link& link, const FrameHeader& header);
    // All bytes of this frame have arrived.
    void arrived(Link& link, const FrameHeader& header);
    // A numbered frame without a payload has arrived for the first time.
    void control(Link& link, const FrameHeader& header);

  private:
    struct Port {
        const Roster* roster;
        int member;
    };

    void hear_credit(const FrameHeader& header);
    void hear_offer(Link& link, const FrameHeader& header);
    void hear_form(const FrameHeader& header);
    void hear_answer(const FrameHeader& header);
    const Form* stranger(const Party& party, const MessageKey& key) const;
    void compare(const FrameHeader& header);
    void compare_message(const FrameHeader& header);

    const BoundHost host_;
    const Lifecycle& life_;
    Outbox outbox_;
    Inbox inbox_;
    std::unordered_map<uint64_t, Port> rosters_;
};

}  // namespace taskd::rail
