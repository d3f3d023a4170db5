// One pair of rails between two processes, from its first dial to its last: the connection, and what is known about it.
//
// It owns the link while there is one, its standing (Standing), its delivery rate (Pace), its probes (Probes), the time
// of the next dial (Redial), and whether both ends want it to be used. Failure modes: a broken link stays until it is
// taken away, and counts as connected until then. What is known about a rail's speed ends with its connection. A rail
// that either end has put out of use carries frames only if there is no better one.
//
// Does not: know other paths, decide what it carries (Scheduler), or decide which path is the silent one (Paths).
#pragma once

#include <memory>
#include <string>

#include "rail/counters.hpp"
#include "rail/io/link.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/pace.hpp"
#include "rail/session/probes.hpp"
#include "rail/session/redial.hpp"
#include "rail/session/standing.hpp"

namespace taskd::rail {

// Which rails a path connects, and its place among the paths of its session.
struct PathRails {
    size_t index = 0;
    size_t here = 0;
    size_t there = 0;
    std::string name;
};

// Whether each end wants the path to be used.
struct Orders {
    bool here = true;
    bool there = true;

    bool is_in_use() const { return here && there; }
};

class Path {
  public:
    Path(SocketLayer& sockets, PathRails rails, CounterRecord& record, const Redial& redial);

    // ---- its parts
    const PathRails rails;
    CounterRecord& record;
    Standing standing;
    Probes probes;
    Redial redial;
    Orders orders;
    std::string trouble;  // the last problem; empty: none yet
    size_t budget = 0;    // bytes that the path may still get in this turn

    const Pace& pace() const { return pace_; }

    // Null: there is no link.
    Link* link() const { return link_.get(); }

    PathState state() const { return standing.state(); }

    // There is a connection, and it is not broken.
    bool is_live() const { return link_ && !link_->is_broken(); }

    bool is_up() const { return is_live() && state() == PathState::kUp; }

    // ---- its connection
    void attach(std::unique_ptr<Link> link, int64_t now_ns, bool is_dialler);
    // Returns the name of the connection, which both ends know; 0: it has none.
    uint64_t detach();
    // The other end has lost this connection, and names it by its own rail number. True: it is this one, and it is cut.
    bool hear_lost(size_t rail_there, uint64_t connection);

    // ---- what it carries
    void carry(Numbered& frame, const Yardstick& by);

    bool carries(const Numbered& frame) const { return (frame.carriers >> rails.index & 1) != 0; }

    // The frame has arrived, on this path or on another that carried it. True: only this path can have brought it.
    bool acknowledged(const Numbered& frame, int64_t now_ns);

    // Bytes that the other end's system (its kernel) has not acknowledged; below 0: unknown.
    long queued() const { return sockets_.queued(link_->fd()); }

    // Some of these bytes have left. The others stay here as long as the other end has no room.
    bool is_awaited() const { return sockets_.is_awaited(link_->fd()); }

    // How many bytes of this path the other end's system has, whether or not its process has read them.
    uint64_t brought() const;
    // The rail has not delivered the bytes before `end`, and the reason is not that the other end has no room. In every
    // other case the bytes wait for the other process, and no other rail would be quicker.
    bool holds(uint64_t end) const;

    // ---- what it answers
    void probe(FrameHeader ping, int64_t now_ns);
    void pong(int64_t asked_ns, int64_t now_ns);
    // Something that was sent at `sent_ns`, on this path only, has arrived.
    void answered(int64_t sent_ns, int64_t now_ns);
    // Other paths take over what this path carries. The caller must send a probe with the same time stamp next.
    void be_late(int64_t now_ns);
    // Inspects a suspect path. `witness_ns`: what other paths have answered. True: the path is dead, and it is cut.
    bool judge(int64_t now_ns, int64_t witness_ns);

  private:
    // The counts at the last inspection of a suspect.
    struct Glance {
        uint64_t read = 0;
        uint64_t brought = 0;
    };

    SocketLayer& sockets_;
    std::unique_ptr<Link> link_;
    uint64_t connection_ = 0;
    Pace pace_;
    Glance glance_;
};

}  // namespace taskd::rail
