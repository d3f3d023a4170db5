// The state of one path: down, dialling, up, late, suspect, dead.
//
//     down -> dialling -> up <-> late -> suspect -> dead      the side that does not dial goes from down to up
//     late, suspect and dead -> up                            an answer came, or there is nothing to compare with
//     every state -> down                                     its connection is gone
//
// Why: silence alone proves nothing. A path is late if something that was sent later over another path has been
// answered, while its own bytes have not. Then the other process is awake, so this rail is slow or silent. A late path
// gets nothing new until it has answered a probe that was sent behind everything it carried; this answer also measures
// the path. Whether the silence is too long is judged by the path's own round trip (suspect). A path is declared dead
// only if other paths to the same process answered while it did not. A busy process may answer on one path long before
// it has read another one. But its system acknowledges bytes at once, so the path is dead if the system is silent. A
// path gets much more time only if all its bytes arrive and its answers never do.
//
// Pure: it is told what happened and when. Does not: send, probe, or look at a clock.
#pragma once

#include <cstdint>

#include "rail/session/pace.hpp"

namespace taskd::rail {

constexpr int64_t kSilenceFloorNs = kPatienceFloorNs;
constexpr int64_t kDeathNs = 100 * kMillisecondNs;      // a rail that delivers nothing for this long, while others do
constexpr int64_t kDeafNs = 1000 * kMillisecondNs;      // a rail that delivers everything, but no answer ever comes
constexpr int64_t kProbeEveryNs = 40 * kMillisecondNs;  // while a path is suspect
constexpr int64_t kLookAgainNs = 5 * kMillisecondNs;    // pause until an overdue frame is checked again

// All states from kUp on have a connection.
enum class PathState {
    kDown,      // no connection
    kDialling,  // no connection, and a dial is under way
    kUp,        // it carries frames
    kLate,      // its frames were overtaken: nothing new until it has answered a probe behind them
    kSuspect,   // silent for longer than its patience
    kDead       // given up; its connection is about to be taken away
};

class Standing {
  public:
    PathState state() const { return state_; }

    bool is_connected() const { return state_ >= PathState::kUp; }

    // Since when the path has been late or suspect.
    int64_t since_ns() const { return since_ns_; }

    void dialling();
    void dial_failed();
    // A new connection. Nothing is kept of the last one.
    void connected();
    void lost();
    // Something that was sent on this path at `sent_ns` has been answered: a probe, or a frame that went nowhere else.
    // A late path becomes up only if it was sent when the path was late already.
    void answered(int64_t sent_ns);
    // There is no other path to compare it with. It carries everything, and the system's own patience decides.
    void alone();

    // The other end's system has everything that was sent, or more than before: the rail itself is not dead.
    void carried(int64_t now_ns) { carried_ns_ = now_ns; }

    // Some bytes arrived, or some of many waiting bytes reached the other end: the path is slow, not deaf.
    void progressed(int64_t now_ns) { carried_ns_ = progress_ns_ = now_ns; }

    // Other paths take over its frames, and a probe is sent behind them.
    void overtaken(int64_t now_ns);
    // Its oldest unacknowledged frame, or that probe, is older than the path's patience.
    void suspect(int64_t now_ns);

    void probed(int64_t now_ns) { probed_ns_ = now_ns; }

    // Whether a probe should go out now.
    bool wants_probe(int64_t now_ns) const;
    // `witness_ns`: the latest send time of anything on another path to the same process that has been answered (0:
    // never). Returns true once: the path is dead.
    bool judge(int64_t now_ns, int64_t witness_ns);
    // When to inspect a suspect again; INT64_MAX: it is not suspect.
    int64_t next_ns() const;

  private:
    PathState state_ = PathState::kDown;
    int64_t since_ns_ = 0;
    int64_t carried_ns_ = 0;
    int64_t progress_ns_ = 0;
    int64_t probed_ns_ = 0;
};

}  // namespace taskd::rail
