// The interface between collectives and the sessions that carry their data: messages between the members of one group,
// addressed by key, never lost, never doubled, in no order.
//
// Why: a collective that knows only "this memory goes to that member as part 3 of operation 17" can be tested against a
// transport of fifty lines that delivers in any order. A session that knows only messages can carry something else one
// day (an NCCL network plug-in). So neither includes the other; both include this file.
//
// The life of a message: it has an address (group, sequence, part) that both ends can compute, and a size that both
// ends know. Small messages (at most kEagerBytes) are copied when they are sent, and may arrive before anybody asks for
// them. Large messages stay where they are, and flow only after the receiver has named the memory for them. So order is
// kept per operation, and a message that one operation does not take cannot block another operation.
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

// A message of at most this size is copied and sent at once; a larger one waits for its receiver.
constexpr size_t kEagerBytes = 64 << 10;

// Why an operation or a group failed. `text` names ranks, rails and what was tried, and ends with what the user should
// do.
struct Failure {
    enum class Code { kTimeout, kLost, kAborted, kDiffers, kUsage };
    Code code = Code::kLost;
    std::string text;
};

// One operation of this rank, as the transport sees it. Members are identified by their index in the group.
class Party {
  public:
    virtual ~Party() = default;

    // The operation owns this message's memory again: it was copied, or the receiver has it.
    virtual void sent(int member, uint32_t part) = 0;
    // The message has arrived completely and will not be written to any more.
    virtual void arrived(int member, uint32_t part) = 0;
    // The first bytes of the message are about to be written to the memory that was named for it. This is the last
    // moment to release() a message that is still read from there.
    virtual void beginning(int member, uint32_t part) = 0;
    // A message with this address has come or has been announced; follows watch().
    virtual void offered(int member, uint32_t part) = 0;
    // This member is in another operation under the same sequence number.
    virtual void differs(int member, const Form& theirs) = 0;
    // A session that the group needs has given up, or the group was aborted. Nothing follows.
    virtual void failed(const Failure& failure) = 0;
    // The time asked for by Transport::wake_at() has come.
    virtual void woken(int64_t now_ns) = 0;

    virtual uint64_t sequence() const = 0;
    virtual const Form& form() const = 0;
};

// What one group uses of the sessions.
class Transport {
  public:
    virtual ~Transport() = default;

    // Sends `bytes` (0 is allowed: only a signal) to a member. `data` must not change until sent() or release().
    // `announce`: tells the member about a large message that nobody there may have asked for (see watch()).
    virtual void send(Party& party, int member, uint32_t part, const void* data, size_t bytes, bool announce) = 0;
    // Names the memory for a message. The message may arrive within this very call.
    virtual void receive(Party& party, int member, uint32_t part, void* data, size_t bytes) = 0;
    // Calls offered() as soon as such a message is there or announced: for receivers that take a message from any
    // member.
    virtual void watch(Party& party, int member, uint32_t part) = 0;
    // The receiver certainly has this message (its answer proves it), so its memory is not read any more from now on.
    // No sent() follows. A message that is not under way is fine.
    virtual void release(Party& party, int member, uint32_t part) = 0;
    // Tells a member which operation this is, so that the member can notice a difference. For an operation that has
    // waited too long.
    virtual void describe(Party& party, int member) = 0;
    // The operation ends: none of its memory is read or written after this, and nothing calls it any more. A message
    // that it has watched for and not received stays for another operation.
    virtual void forget(Party& party) = 0;

    // Calls woken() at this time of CLOCK_MONOTONIC. It replaces an earlier request; 0 cancels it.
    virtual void wake_at(Party& party, int64_t time_ns) = 0;
    virtual int64_t now_ns() const = 0;
    // Runs the job on the engine's thread, or the caller's, as soon as the lock has been released. The job must not
    // block.
    virtual void after_unlock(std::function<void()> job) = 0;
    // The member's name and place for a message: "rank 3 (10.0.0.2)".
    virtual std::string name_of(int member) const = 0;
};

}  // namespace taskd::rail
