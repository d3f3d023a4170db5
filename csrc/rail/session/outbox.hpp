// The outgoing side of one session: messages that wait or flow, and frames that are not acknowledged yet.
//
// Why: a message is cut into frames at the moment when a link can take one, so that each link takes as much as it
// delivers. A numbered frame is remembered until the other side has it, whatever happens to its link.
//
// Small messages are copied here and leave first. They count against the receiver's pool until the receiver says that
// it has freed them. A small message that would not fit into the pool is announced instead, and waits for credit like a
// large one. So the unread messages of one group cannot stop another group.
//
// A link that sends a frame holds a reference to its message, so a copy lives until the link has sent it. The caller's
// memory is given back when the other side has all of it, or when the message is taken back. Before that, every link
// lets go of it: the other side may acknowledge a frame that has not even left this host.
//
// Does not: know links, choose between them, or look at a clock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "rail/io/frame.hpp"
#include "rail/session/borrowers.hpp"
#include "rail/session/pace.hpp"

namespace taskd::rail {

// Credits kept for operations that have been given up or have not begun yet. Beyond this, credits are dropped and
// messages ask again.
constexpr size_t kCreditsKept = 1 << 16;

struct Outgoing {
    MessageKey key;
    Form form;
    Party* party = nullptr;  // for a large message: whom to tell
    int member = 0;
    const char* data = nullptr;  // null after the memory was given back
    size_t bytes = 0;
    size_t carved = 0;
    size_t unacknowledged = 0;
    bool is_small = false;
    bool is_flowing = false;  // it has got its credit
    bool is_taken_back = false;
    std::unique_ptr<char[]> copy;
};

// A numbered frame.
struct Numbered {
    FrameHeader header;
    std::shared_ptr<Outgoing> message;  // null: no payload
    uint32_t carriers = 0;              // one bit for each link that carries it
    int sends = 0;
    size_t weight = 0;  // bytes on the wire at the first send: what its carriers count, even if it is void by now
    bool is_acknowledged = false;
    bool is_queued = false;   // it waits to be sent again
    Pace::Mark mark;          // of the last send
    uint64_t end = 0;         // where its bytes end in the stream of the link that carried it last
    int64_t expected_ns = 0;  // when it should be acknowledged
    int64_t late_ns = 0;      // and from when on it is late

    const char* payload() const { return message && message->data ? message->data + header.offset : nullptr; }

    bool is_small() const { return !message || message->is_small || header.length <= 4096; }
};

class Outbox {
  public:
    Outbox(int64_t epoch, Borrowers& borrowers) : epoch_(epoch), borrowers_(borrowers) {}

    // Takes a message. True: it was copied, and its memory is free again. `differs` is set if the receiver's credit for
    // the message came from another operation.
    bool add(const MessageKey& key, const Party& party, int member, const void* data, size_t bytes, bool announce,
             const Form** differs);
    // Queues a frame without a payload that is about this message.
    void add_control(FrameType type, const MessageKey& key, const Form& form, size_t bytes, uint64_t offset = 0);
    // The message that waits for its receiver or flows; null: there is none.
    const Outgoing* waiting(const MessageKey& key) const;
    void credit(const MessageKey& key, const Form& form);
    // Whether this operation has a message that the other side does not have yet.
    bool awaits(uint64_t group, uint64_t sequence, const Party& party) const;

    void freed(uint64_t total) { freed_ = total > freed_ ? total : freed_; }

    // After this the message's memory is not read any more. False: no such message is under way.
    bool take_back(const MessageKey& key);
    // Takes back all large messages of this operation.
    void take_back_all(uint64_t group, uint64_t sequence, const Party& party);

    bool has_small();
    bool has_large();
    // The approximate size of the next small frame. Call it only if there is one.
    size_t small_bytes() const;
    Numbered& next_small();
    Numbered& next_large(size_t piece);

    // Calls `done` for each frame that was not acknowledged before, and `complete` for each large message that the
    // receiver has now. The memory of such a message is not read any more.
    void acknowledge(uint64_t first, uint64_t last, const std::function<void(Numbered&)>& done,
                     const std::function<void(Outgoing&)>& complete);
    void send_again(Numbered& frame);

    std::deque<Numbered>& unacknowledged() { return frames_; }

    const std::deque<Numbered>& unacknowledged() const { return frames_; }

    bool idle() { return frames_.empty() && !has_small() && large_.empty(); }

  private:
    void give_back(const std::shared_ptr<Outgoing>& message);
    Numbered& number(FrameType type, const MessageKey& key, const Form& form);
    Numbered* pop_again(std::deque<uint64_t>& queue);
    void skip_taken(std::deque<std::shared_ptr<Outgoing>>& queue);
    bool skip_done(std::deque<uint64_t>& queue);

    const int64_t epoch_;
    Borrowers& borrowers_;
    uint64_t next_number_ = 1;
    std::deque<Numbered> frames_;  // from the oldest unacknowledged one on, without gaps
    std::deque<uint64_t> small_again_;
    std::deque<uint64_t> large_again_;
    std::deque<FrameHeader> controls_;
    std::deque<std::shared_ptr<Outgoing>> small_;
    std::deque<std::shared_ptr<Outgoing>> flowing_;
    std::map<MessageKey, std::shared_ptr<Outgoing>> large_;  // all that are not complete
    std::map<MessageKey, Form> credits_;                     // credits that came before their message
    bool has_dropped_credits_ = false;
    uint64_t pool_used_ = 0;  // bytes of all small messages sent so far
    uint64_t freed_ = 0;
};

}  // namespace taskd::rail
