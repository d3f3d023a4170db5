// The incoming side of one session: memory that operations have named, and small messages that came before anybody
// asked for them.
//
// Why: bytes of a message that somebody waits for go straight to their place. Small messages that nobody waits for yet
// go to a bounded pool, and the sender counts how much of it is used. Nothing else is accepted. At any time one link
// owns a range of a message, and only frames that arrived whole count. Memory is freed or replaced only after all links
// have let go of it. So nothing that the other side sends can make a link write into memory that belongs to something
// else by now.
//
// Failure modes: a peer may send a small message under two numbers, change the size of a message, or send more of a
// large one than there is. Such a peer has broken the rules, and the connection that brought the frame is cut.
//
// Does not: know links or numbers (the session does), or send credit: it only says when credit is due.
#pragma once

#include <map>
#include <memory>

#include "rail/io/frame.hpp"
#include "rail/session/borrowers.hpp"
#include "rail/session/pools.hpp"

namespace taskd::rail {

constexpr size_t kAbandonedKept = 4096;
// Messages that were announced and that nobody has asked for. This is more than any job has, and takes no more memory
// than this machine can spare for a peer that misbehaves.
constexpr size_t kOffersKept = 1 << 20;

// Pool memory for one small message. Its size is the message's size when the first frame came.
class Pooled {
  public:
    explicit operator bool() const { return memory_ != nullptr; }

    char* data() const { return memory_.get(); }

    size_t bytes() const { return bytes_; }

    void take(size_t bytes) {
        memory_.reset(new char[bytes + 1]);
        bytes_ = bytes;
    }

  private:
    std::unique_ptr<char[]> memory_;
    size_t bytes_ = 0;
};

struct Inbound {
    Party* party = nullptr;  // the operation that asked for it, or watches for it
    int member = 0;
    char* data = nullptr;
    size_t room = 0;   // bytes of the memory that was named
    size_t bytes = 0;  // of the message; as much as there is room, until anything of it has come
    size_t arrived = 0;
    bool may_be_shorter = false;  // than the memory that was named
    bool is_posted = false;
    bool is_watched = false;
    bool is_offered = false;    // it was announced, and waits for credit
    bool is_begun = false;      // beginning() was called
    bool is_abandoned = false;  // the operation that asked has gone: what comes is dropped
    bool is_complete = false;   // it is complete in the pool
    Form form;                  // the sender's form, if anything of the message has come
    bool has_form = false;
    uint64_t number = 0;  // of the frame that brings a small message; 0: none has begun
    Pooled pool;

    // Whether the message of this frame can go into the memory that was named.
    bool takes(const FrameHeader& header) const {
        return may_be_shorter && !has_form ? header.bytes <= room : header.bytes == bytes;
    }
};

// What the caller of Inbox has to do next.
struct Posting {
    bool wants_credit = false;
    bool is_complete = false;  // tell the party
    bool differs = false;
    Form theirs;
};

enum class Arrival { kNothing, kArrived, kOffered };

class Inbox {
  public:
    using Place = std::map<MessageKey, Inbound>::iterator;

    Inbox(Borrowers& borrowers, Pools& pools) : borrowers_(borrowers), pools_(pools) {}

    ~Inbox() { pools_.give_back(grown_); }

    Inbox(const Inbox&) = delete;
    Inbox& operator=(const Inbox&) = delete;

    Posting post(const MessageKey& key, Party& party, int member, void* data, size_t bytes);
    // True: such a message has come or has been announced already.
    bool watch(const MessageKey& key, Party& party, int member);

    // The entry of a message for which memory was named; null: none was.
    const Inbound* posted(const MessageKey& key) const;
    // A data frame begins. Null: drop it. `fault` is set if the sender breaks the rules.
    Inbound* begin(const FrameHeader& header, const char** fault);
    // Where its bytes go.
    static char* place_of(Inbound& inbound, const FrameHeader& header);
    // The frame has arrived whole. kArrived: the message is complete too, and its entry is gone. `was_placed`: its
    // bytes went to where begin() had said, and that memory is still there. `fault` is set if the sender breaks the
    // rules.
    Arrival finish(const FrameHeader& header, bool was_placed, Party** party, int* member, const char** fault);
    // A large message waits, or a small one for which the pool had no room. Returns its entry. Null: the sender breaks
    // the rules, and `fault` says which rule.
    Inbound* offer(const FrameHeader& header, const char** fault);
    // Whether this operation has asked for a message, or watches for one, and not all of it has come.
    bool awaits(uint64_t group, uint64_t sequence, const Party& party) const;

    // Drops everything that only this operation has asked for. A message that it only watched for stays for the next
    // operation that asks.
    void forget(uint64_t group, uint64_t sequence, const Party& party);

    // Bytes of small messages that have left the pool, or never went through it.
    uint64_t freed() const { return freed_; }

    // By how many bytes the pool is larger than at first.
    size_t grown() const { return grown_; }

    // Whether nothing was asked for, and nothing waits for an operation that asks.
    bool is_empty() const { return entries_.empty(); }

    // The form of a message under the same sequence number that came from an operation of another form; null: none.
    const Form* stranger(uint64_t group, uint64_t sequence, const Form& mine) const;

  private:
    Inbound* begin_unasked(Place place, const FrameHeader& header, const char** fault);
    void unwatch(Place place);
    void abandon(Place place);
    void drop_memory(Place place);
    void replace(Place place);
    void erase(Place place);

    Borrowers& borrowers_;
    Pools& pools_;
    std::map<MessageKey, Inbound> entries_;
    uint64_t freed_ = 0;
    size_t pooled_ = 0;
    size_t grown_ = 0;
    size_t abandoned_ = 0;
};

}  // namespace taskd::rail
