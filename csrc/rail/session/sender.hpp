// The sending side of a session: it cuts messages into frames, puts these on paths, and remembers them until they are
// acknowledged.
//
// It owns the choice of paths (Scheduler) and what is sent a second time (Overtaking). Failure modes: frames that were
// staged on a path and could not leave go first. If no path has room, frames wait in the outbox. One turn gives each
// path a bounded number of bytes, so that other threads that wait for the lock get it.
//
// Does not: take paths down, or say farewell.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rail/session/acknowledger.hpp"
#include "rail/session/host.hpp"
#include "rail/session/lifecycle.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/overtaking.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/prober.hpp"
#include "rail/session/scheduler.hpp"

namespace taskd::rail {

class Sender {
  public:
    Sender(BoundHost host, Paths& paths, Outbox& outbox, Acknowledger& acknowledger, Prober& prober,
           const Lifecycle& life);

    // ---- one turn, in this order
    // Writes first what was staged and could not leave before.
    void begin_turn();
    // Puts frames on paths that take them. True: more than this turn's worth is left.
    bool send();
    // Acknowledges what has arrived, if that is due and a path takes it.
    void acknowledge();
    // Writes what is staged. True: more than this turn's worth is left.
    bool flush();

    // ---- what the other side has
    // The header acknowledges all frames up to a number, and `ranges` those above it.
    void acknowledged(const FrameHeader& header, const Range* ranges, size_t count);

    // Sends again what the lost connection of this path carried.
    void send_again(const Path& path);

    // Whether something may have been overtaken by now.
    bool is_due(int64_t now_ns) const { return paths_.can_compare() && overtaking_.due_ns() <= now_ns; }

    // When to check for that; INT64_MAX: never.
    int64_t next_ns(int64_t now_ns) const;

  private:
    bool send_some(bool* more);
    bool send_small();
    bool send_large();
    Path* choose(size_t bytes, bool is_large);
    void stage(Path& path, Numbered& frame);
    void frame_acknowledged(Numbered& frame);

    const BoundHost host_;
    Paths& paths_;
    Outbox& outbox_;
    Acknowledger& acknowledger_;
    Prober& prober_;
    const Lifecycle& life_;
    Scheduler scheduler_;
    Overtaking overtaking_;
};

}  // namespace taskd::rail
