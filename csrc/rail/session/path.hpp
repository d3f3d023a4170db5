// One pair of rails between two processes, from the first dial to the last: its connection, and all that is known of
// it.
//
// It owns the link while there is one, how it stands (Standing), what it delivers (Pace), what it was asked (Probes),
// when it is dialled (Redial), and who wants it to be used. Failure modes: a link that is broken stays until it is
// taken away, and counts as connected meanwhile; what is known of a rail's speed ends with its connection; a rail that
// was put out of use by either end carries only where nothing better does.
//
// Does not: know other paths, or decide what it carries (Scheduler), or which of them is the silent one (Paths).
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

// Who wants a path to be used.
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
    std::string trouble;  // what was wrong last; empty: nothing yet
    size_t budget = 0;    // bytes that this turn may still give to it

    const Pace& pace() const { return pace_; }

    // Null: there is none.
    Link* link() const { return link_.get(); }

    PathState state() const { return standing.state(); }

    // There is a connection, and it is not broken.
    bool is_live() const { return link_ && !link_->is_broken(); }

    bool is_up() const { return is_live() && state() == PathState::kUp; }

    // ---- its connection
    void attach(std::unique_ptr<Link> link, int64_t now_ns, bool is_dialler);
    // Returns the connection's name, which both ends know; 0: they know none.
    uint64_t detach();
    // The other end has lost this connection, named by its own number of the rail. True: it is this one, and cut.
    bool hear_lost(size_t rail_there, uint64_t connection);

    // ---- what it carries
    void carry(Numbered& frame, const Yardstick& by);

    bool carries(const Numbered& frame) const { return (frame.carriers >> rails.index & 1) != 0; }

    // The frame has arrived, on this path or on another that carried it. True: it can have come on this one only.
    bool acknowledged(const Numbered& frame, int64_t now_ns);

    // Bytes that the other end's system has not acknowledged; below 0: unknown.
    long queued() const { return sockets_.queued(link_->fd()); }

    // Some of them have left; the others stay here while the other end has no room.
    bool is_awaited() const { return sockets_.is_awaited(link_->fd()); }

    // How many of its bytes the other end's system has, whether its process has read them or not.
    uint64_t brought() const;
    // The rail has not brought what ends there, and it is not the other end that has no room for it. Everything else
    // waits for the other process, and no other rail would be quicker.
    bool holds(uint64_t end) const;

    // ---- what it answers
    void probe(FrameHeader ping, int64_t now_ns);
    void pong(int64_t asked_ns, int64_t now_ns);
    // Something that it was given at `sent_ns`, and no other path was, is there.
    void answered(int64_t sent_ns, int64_t now_ns);
    // What it carries is taken over by others. A probe of this moment has to follow.
    void be_late(int64_t now_ns);
    // Looks at a suspect. `witness_ns`: what other paths have answered. True: it is dead, and cut.
    bool judge(int64_t now_ns, int64_t witness_ns);

  private:
    // At the last look at a suspect.
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
