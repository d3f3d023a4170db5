// All links with one other process in one epoch: what is sent over them, what comes, and how they stand.
//
// Why one for all groups: the rails and their state belong to the pair of processes, and a frame that one link loses is
// carried by another without any group's notice. A session belongs to one epoch and so do its connections: what is old
// dies with its socket.
//
// It is driven from outside, with the engine's lock held: told when a socket is ready, when a time has come, when
// somebody wants to send. It answers through its host, and calls no operation itself except to say that bytes are about
// to be written; everything else is posted as an event and delivered when nothing is half done.
//
// Does not: accept, dial or wait (engine/core.hpp), or know what a group is beyond whom to ask for an operation.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rail/counters.hpp"
#include "rail/io/endpoint.hpp"
#include "rail/io/link.hpp"
#include "rail/session/event.hpp"
#include "rail/session/inbox.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/pace.hpp"
#include "rail/session/retry.hpp"
#include "rail/session/silence.hpp"

namespace taskd::rail {

class Session;

class SessionHost {
  public:
    virtual ~SessionHost() = default;
    virtual int64_t now_ns() const = 0;
    virtual void post(Event event) = 0;
    // pump() it before the lock is released.
    virtual void dirty(Session& session) = 0;
    // on_time() no later than this.
    virtual void wake_by(int64_t time_ns) = 0;
    virtual void watch(Session& session, Link& link) = 0;
    virtual void unwatch(Link& link) = 0;
    virtual void dial(Session& session, size_t slot) = 0;
    // It is connected now, or has failed.
    virtual void changed(Session& session) = 0;
};

// A group's operations, by their sequence.
class Roster {
  public:
    virtual ~Roster() = default;
    virtual Party* find(uint64_t sequence) const = 0;
    // What this operation is, or was, for it may have ended a while ago; null: not known.
    virtual const Form* form_of(uint64_t sequence) const = 0;
};

// One pair of rails.
struct Slot {
    size_t rail_here = 0;
    size_t rail_there = 0;
    std::string name;
    CounterRecord* record = nullptr;
    std::unique_ptr<Link> link;
    Pace pace;
    Silence silence;
    bool is_usable = true;   // its interface works
    bool is_ordered = true;  // nobody has put it out of use
    bool is_wanted = true;   // nor has anybody at the other end
    bool is_dialling = false;
    bool has_said_farewell = false;  // on this link
    int64_t dial_at_ns = INT64_MAX;
    int64_t pause_ns = 0;  // before the next dial
    int refusals = 0;
    std::string last_trouble;
    uint64_t connection = 0;  // the link's name on both sides; 0: none that both know
    int64_t witness_ns = 0;   // the latest moment at which it was given something that has been answered
    int64_t heard_ns = 0;     // when something it was given was answered last
    int64_t pinged_ns = 0;    // when the oldest probe was sent that is not answered; 0: there is none
    uint64_t pinged_end = 0;  // and where its bytes end among the link's
    int64_t late_ns = 0;      // when a probe was sent behind everything it carried, and how much that was
    size_t late_bytes = 0;
    uint64_t read_then = 0;  // at the last look
    uint64_t brought_then = 0;
    size_t budget = 0;  // of one pump

    bool up() const { return link && !link->is_broken() && silence.standing() == Standing::kUp; }

    bool in_use() const { return is_ordered && is_wanted; }
};

struct SessionNames {
    int peer_rank = -1;
    std::string peer;  // "rank 3 (node b)"
};

class Session : public LinkReader {
  public:
    Session(SessionHost& host, SocketLayer& sockets, Counters& counters, const Retry& retry, int64_t epoch,
            const Endpoint& me, const Endpoint& peer, SessionNames names);
    ~Session() override;

    int64_t epoch() const { return epoch_; }

    const Endpoint& peer() const { return peer_; }

    const SessionNames& names() const { return names_; }

    bool dials() const { return dials_; }

    std::vector<Slot>& slots() { return slots_; }

    size_t connected() const;

    // Empty: it lives.
    const std::string& failure() const { return failure_; }

    // Nothing is on its way in either direction that anybody could miss.
    bool idle() { return outbox_.idle(); }

    // It has failed because the other side has left in good order: all that it sent is here, and it needs nothing.
    bool peer_has_left() const { return peer_has_left_ && !failure_.empty(); }

    // It has failed because the other side has left, in good order or by ending the epoch; so that one had been in it.
    bool heard_farewell() const { return !farewell_.empty() && !failure_.empty(); }

    // Whether this operation waits for something that the other side has not done yet.
    bool awaits(const Party& party, uint64_t group) const;

    // ---- for groups
    void enter(uint64_t group, const Roster& roster, int member) { rosters_[group] = {&roster, member}; }

    void leave(uint64_t group, const Roster& roster) {
        if (const auto found = rosters_.find(group); found != rosters_.end() && found->second.roster == &roster)
            rosters_.erase(found);
    }

    void send(Party& party, int member, const MessageKey& key, const void* data, size_t bytes, bool announce);
    void receive(Party& party, int member, const MessageKey& key, void* data, size_t bytes);
    void watch(Party& party, int member, const MessageKey& key);
    void release(const MessageKey& key);
    void describe(const MessageKey& key, const Form& form);
    void forget(Party& party, uint64_t group);

    // ---- for the engine
    void attach(size_t slot, int fd);
    void dial_failed(size_t slot, int error, const std::string& trouble);
    void set_interface(size_t rail_here, bool usable, const std::string& reason);
    void set_order(size_t rail_here, bool in_use);
    // Takes broken links away; true if there were any.
    bool reap();
    // Writes what can be written. True: there is more than one turn's worth.
    bool pump();
    void on_time(int64_t now_ns);
    int64_t next_ns(int64_t now_ns);
    // Says farewell in good order, as soon as everything sent is acknowledged.
    void leave(const std::string& reason);

    // It has not been answered yet, and may be.
    bool lingers() const { return was_connected_ && failure_.empty(); }

    // Says farewell and closes everything. No memory is touched afterwards.
    void end(const std::string& reason);

    // Rails, addresses, and what is wrong with each.
    std::string what_was_tried() const;

    // ---- LinkReader
    char* data_begins(Link& link, const FrameHeader& header) override;
    void data_ended(Link& link, const FrameHeader& header, bool counts) override;
    void control(Link& link, const FrameHeader& header, const char* payload) override;

  private:
    struct Port {
        const Roster* roster;
        int member;
    };

    const Form* stranger(const Party& party, const MessageKey& key) const;
    void compare(const FrameHeader& header);
    void compare_message(const FrameHeader& header);
    void acknowledged(const FrameHeader& header, const Range* ranges, size_t count);
    void frame_acknowledged(Numbered& frame);
    void arrived(const FrameHeader& header, Link& link);
    void handle(Link& link, const FrameHeader& header);
    bool is_candidate(const Slot& slot, int rung) const;
    bool has_room(const Slot& slot, bool is_large, const Yardstick& by) const;
    Yardstick yardstick() const;
    Slot* unproved(bool is_large, const Yardstick& by);
    Slot* choose(size_t bytes, bool is_large);
    Slot* in_turn(Slot* best, size_t bytes, int rung, const Yardstick& by);
    bool alone() const;
    void stage(Slot& slot, Numbered& frame);
    bool stage_some(bool* more);
    void stage_acknowledgement();
    void stage_acknowledgement(Slot& slot);
    void stage_farewell(Slot& slot, const std::string& reason, uint64_t manner);
    void say_farewell();
    void close_links();
    void hear_farewell(Link& link, const FrameHeader& header, const char* payload);
    FrameHeader bare(FrameType type) const;
    bool overtake();
    Slot* carrier_of(const Numbered& frame);
    uint64_t brought(const Slot& slot) const;
    bool holds(const Slot& slot, uint64_t end) const;
    bool is_overtaken(const Numbered& frame, const Slot& slow, const Yardstick& by, bool* asks);
    bool is_slower(const Numbered& frame, const Slot& slow, size_t taken, const Yardstick& by) const;
    void be_late(Slot& slot, int64_t now_ns);
    void answered(Slot& slot, int64_t sent_ns, int64_t now_ns);
    void pong(Slot& slot, int64_t asked_ns);
    void ask(int64_t now_ns);
    void tell_lost(const Slot& lost);
    void hear_lost(const FrameHeader& header);
    void look_for_silence(Slot& slot, int64_t now_ns);
    void look_for_loss(int64_t now_ns);

    // Something is on its way in one direction or the other, as far as is known here, and there are links for it.
    bool is_waiting() const { return (!outbox_.unacknowledged().empty() || !inbox_.is_empty()) && connected() > 0; }

    void probe(int64_t now_ns);
    Numbered* oldest_on(size_t slot);
    void lose(Slot& slot, int error, const char* fault);
    void retry_later(Slot& slot, int64_t now_ns);
    void check_hold(int64_t now_ns);
    void fail(const std::string& text);
    bool is_outdone(const Slot& slot) const;
    void show(Slot& slot);

    SessionHost& host_;
    SocketLayer& sockets_;
    Counters& counters_;
    const Retry retry_;
    const int64_t epoch_;
    const Endpoint me_;
    const Endpoint peer_;
    const SessionNames names_;
    const bool dials_;
    std::vector<Slot> slots_;
    Outbox outbox_;
    Inbox inbox_;
    Arrivals arrivals_;
    std::unordered_map<uint64_t, Port> rosters_;
    std::string failure_;
    std::string farewell_;  // the other side's
    bool peer_has_left_ = false;
    bool is_leaving_ = false;
    std::string own_farewell_;
    bool was_connected_ = false;
    int64_t lost_ns_ = 0;  // since when there is no link; 0: there is one, or there never was
    // The same of links that are there and bring nothing, not one of them.
    int64_t silent_ns_ = 0;
    int64_t moved_ns_ = 0;  // the last look that was no part of it
    uint64_t brought_ = 0;  // by then, over all links, and read
    uint64_t read_ = 0;
    int quiet_looks_ = 0;  // in a row
    int64_t look_for_loss_ns_ = 0;
    // Acknowledgements that are due.
    bool acknowledge_now_ = false;
    int64_t acknowledge_by_ns_ = 0;
    int unacknowledged_ = 0;
    size_t last_slot_ = 0;  // on which something came last
    // Links that are alike take turns with small frames.
    size_t turn_slot_ = 0;
    size_t turn_bytes_ = 0;
    int64_t asked_ns_ = 0;            // when all links were probed last
    int64_t look_at_ns_ = INT64_MAX;  // when the next frame that is on its way will be late
};

}  // namespace taskd::rail
