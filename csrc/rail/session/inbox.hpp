// What one session receives: memory that operations have named, and small messages that came before they were asked
// for.
//
// Why: bytes of a message that somebody waits for go straight to their place; small ones that nobody waits for yet go
// to a pool with a bound, which the sender keeps count of; nothing else is accepted. At any time one link owns a range
// of a message, and only frames that arrived whole count. No memory goes, and nothing takes its place, before all links
// have let go of it, so what the other side sends cannot make them write into what is another's by now.
//
// Failure modes: a peer that sends a small message under two numbers, changes the size of one, or sends more of a large
// one than there is. It has broken the rules, and whatever brought that is cut.
//
// Does not: know links or numbers (the session does), or send credit: it says when that is due.
#pragma once

#include <map>
#include <memory>

#include "rail/io/frame.hpp"
#include "rail/session/borrowers.hpp"

namespace taskd::rail {

constexpr size_t kAbandonedKept = 4096;
// Messages that were announced and nobody has asked for: more than any job has, and no more memory than this machine
// can spare for a peer that has lost its mind.
constexpr size_t kOffersKept = 1 << 20;

// Memory of the pool for one small message; it is as large as that was when its first frame came.
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
    Party* party = nullptr;  // who asked for it, or watches
    int member = 0;
    char* data = nullptr;
    size_t bytes = 0;
    size_t arrived = 0;
    bool is_posted = false;
    bool is_watched = false;
    bool is_offered = false;    // announced, and waits for credit
    bool is_begun = false;      // beginning() was called
    bool is_abandoned = false;  // who asked has gone: whatever comes is dropped
    bool is_complete = false;   // in the pool
    Form form;                  // the sender's, if anything of it has come
    bool has_form = false;
    uint64_t number = 0;  // of the frame that brings a small message; 0: none has begun
    Pooled pool;
};

// What the caller of Inbox has to do.
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

    explicit Inbox(Borrowers& borrowers) : borrowers_(borrowers) {}

    Posting post(const MessageKey& key, Party& party, int member, void* data, size_t bytes);
    // True: such a message is there or announced already.
    bool watch(const MessageKey& key, Party& party, int member);

    // The memory that was named for this message; null: none was.
    const Inbound* posted(const MessageKey& key) const;
    // A frame of data begins. Null entry: it is to be dropped. `fault` is set if the sender breaks the rules.
    Inbound* begin(const FrameHeader& header, const char** fault);
    // Where its bytes go.
    static char* place_of(Inbound& inbound, const FrameHeader& header);
    // It has arrived whole. kArrived: so has the message, and its entry is gone. `was_placed`: its bytes went to where
    // begin() had said, and that is still there. `fault` is set if the sender breaks the rules.
    Arrival finish(const FrameHeader& header, bool was_placed, Party** party, int* member, const char** fault);
    // A large message, or a small one that the pool had no room for, waits. Returns its entry; null: the sender breaks
    // the rules, and `fault` says which.
    Inbound* offer(const FrameHeader& header, const char** fault);
    // This operation has asked for a message, or watches for one, and not all of it has come.
    bool awaits(uint64_t group, uint64_t sequence, const Party& party) const;

    // Drops everything of this operation that nobody but it has asked for. What it only watched for is there for
    // whoever asks next.
    void forget(uint64_t group, uint64_t sequence, const Party& party);

    // Bytes of small messages that have left the pool, or passed it by.
    uint64_t freed() const { return freed_; }

    // Nothing was asked for, and nothing waits for somebody who asks.
    bool is_empty() const { return entries_.empty(); }

    // An entry of the same operation that came unasked, from an operation of another form; null: none.
    const Form* stranger(uint64_t group, uint64_t sequence, const Form& mine) const;

  private:
    Inbound* begin_unasked(Place place, const FrameHeader& header, const char** fault);
    void unwatch(Place place);
    void abandon(Place place);
    void drop_memory(Place place);
    void replace(Place place);
    void erase(Place place);

    Borrowers& borrowers_;
    std::map<MessageKey, Inbound> entries_;
    uint64_t freed_ = 0;
    size_t pooled_ = 0;
    size_t abandoned_ = 0;
};

}  // namespace taskd::rail
