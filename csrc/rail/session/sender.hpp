// How a session sends: frames are carved from messages, put on paths, and remembered until they are acknowledged.
//
// Owns the choice of paths (Scheduler) and what is sent a second time (Overtaking). Failure modes: what was staged on a
// path and could not leave goes first; where no path has room, frames wait in the outbox; one turn gives each path a
// bounded number of bytes, so that whoever waits for the lock gets it.
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
    // What was staged and could not leave goes first.
    void begin_turn();
    // Puts on paths what finds one. True: there is more than this turn's worth.
    bool send();
    // What has come is said, if that is due and a path takes it.
    void acknowledge();
    // Writes what is staged. True: there is more than this turn's worth.
    bool flush();

    // ---- what the other side has
    // `header` says up to which frame, and `ranges` which ones above.
    void acknowledged(const FrameHeader& header, const Range* ranges, size_t count);

    // What a lost connection of this path carried goes out again.
    void send_again(const Path& path);

    // Something may have been overtaken by now.
    bool is_due(int64_t now_ns) const { return paths_.can_compare() && overtaking_.due_ns() <= now_ns; }

    // When that has to be looked at; INT64_MAX: never.
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
