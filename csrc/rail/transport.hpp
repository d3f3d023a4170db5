// The seam between collectives and the sessions that carry them: messages between the members of one group, by key,
// never lost, never doubled, in no order.
//
// Why: a collective that knows only "this memory goes to that member as part 3 of operation 17" can be tested against a
// transport of fifty lines that delivers in any order, and a session that knows only messages can carry something else
// one day (an NCCL network plug-in). So neither includes the other; both include this.
//
// The life of a message: it has an address (group, sequence, part) that both ends can compute, and a size that both
// ends know. Small ones (kEagerBytes at most) are copied when they are sent and may arrive before they are asked for.
// Large ones stay where they are and flow only once the receiver has named the memory they shall go to: order is per
// operation, and what one operation does not take cannot stand in another's way.
//
// All calls, in both directions, are made with the engine's lock held, and none of them blocks.
//
// Does not: know sockets, rails, torch or what a collective is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "rail/form.hpp"

namespace taskd::rail {

// Times and durations are nanoseconds of CLOCK_MONOTONIC.
constexpr int64_t kMillisecondNs = 1'000'000;

// Up to here a message is copied and sent at once; above, it waits for its receiver.
constexpr size_t kEagerBytes = 64 << 10;

// Why an operation or a group failed. `text` names ranks, rails and what was tried, and ends with what to do.
struct Failure {
    enum class Code { kTimeout, kLost, kAborted, kDiffers, kUsage };
    Code code = Code::kLost;
    std::string text;
};

// One operation of this rank, as the transport sees it. Members are named by their place in the group.
class Party {
  public:
    virtual ~Party() = default;

    // This message's memory is the operation's own again: it was copied, or the receiver has it.
    virtual void sent(int member, uint32_t part) = 0;
    // The message has arrived completely and will not be written to any more.
    virtual void arrived(int member, uint32_t part) = 0;
    // The first bytes of the message are about to be written to where it was asked for: the last moment to release()
    // what still reads from there.
    virtual void beginning(int member, uint32_t part) = 0;
    // A message of this address is there or is announced; follows watch().
    virtual void offered(int member, uint32_t part) = 0;
    // This member is in another operation under the same sequence.
    virtual void differs(int member, const Form& theirs) = 0;
    // A session that the group needs has given up, or the group was aborted. Nothing follows.
    virtual void failed(const Failure& failure) = 0;
    // The time asked for by Transport::wake_at() has come.
    virtual void woken(int64_t now_ns) = 0;

    virtual uint64_t sequence() const = 0;
    virtual const Form& form() const = 0;
};

// What one group has of the sessions.
class Transport {
  public:
    virtual ~Transport() = default;

    // Sends `bytes` (0 is allowed: a bare signal) to a member. `data` must stay as it is until sent() or release().
    // `announce`: tells the member of a large message that nobody may have asked for (see watch()).
    virtual void send(Party& party, int member, uint32_t part, const void* data, size_t bytes, bool announce) = 0;
    // Names the memory for a message. It may arrive within this very call.
    virtual void receive(Party& party, int member, uint32_t part, void* data, size_t bytes) = 0;
    // offered() as soon as such a message is there or announced: for receivers that take what comes from anybody.
    virtual void watch(Party& party, int member, uint32_t part) = 0;
    // The receiver surely has this message (its answer proves it): its memory is read no more from now on. No sent()
    // follows. A message that is not under way is fine.
    virtual void release(Party& party, int member, uint32_t part) = 0;
    // Tells a member which operation this is, so that it can notice a difference; for one who has waited too long.
    virtual void describe(Party& party, int member) = 0;
    // The operation ends: no memory of it is read or written after this, and nobody calls it any more. A message that
    // it has watched for and not received stays for another.
    virtual void forget(Party& party) = 0;

    // woken() at this time of CLOCK_MONOTONIC; replaces an earlier wish, 0 takes it back.
    virtual void wake_at(Party& party, int64_t time_ns) = 0;
    virtual int64_t now_ns() const = 0;
    // Run on the engine's thread, or the caller's, as soon as the lock has been released. It must not block.
    virtual void after_unlock(std::function<void()> job) = 0;
    // Where a member is, for a sentence: "rank 3 (10.0.0.2)".
    virtual std::string name_of(int member) const = 0;
};

}  // namespace taskd::rail
