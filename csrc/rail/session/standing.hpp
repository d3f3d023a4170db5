// How one path stands: down, dialling, up, late, suspect, dead.
//
//     down -> dialling -> up <-> late -> suspect -> dead      whoever does not dial goes from down to up
//     late, suspect and dead -> up                            an answer came, or there is nothing to compare with
//     every state -> down                                     its connection is gone
//
// Why: silence means nothing by itself. A path is late if something that was sent later over another one has been
// answered while its own has not: the other process is awake, so it is this rail that is slow or silent. It gets
// nothing new until it has answered a probe that was sent behind everything it carried, so what it got measures it. Its
// length is judged by the path's own round trip (suspect), and it is taken for dead only if others to the same process
// answered while it did not. A busy process may answer on one path long before it has read another; but its system
// acknowledges for it at once, so it is dead when that is silent. Only one whose bytes all arrive and whose answers
// never do is given much longer.
//
// Pure: it is told what happened and when. Does not: send, probe, or look at a clock.
#pragma once

#include <cstdint>

#include "rail/session/pace.hpp"

namespace taskd::rail {

constexpr int64_t kSilenceFloorNs = kPatienceFloorNs;
constexpr int64_t kDeathNs = 100 * kMillisecondNs;      // a rail that brings nothing for so long, while others do
constexpr int64_t kDeafNs = 1000 * kMillisecondNs;      // one that brings it all, and nobody ever answers
constexpr int64_t kProbeEveryNs = 40 * kMillisecondNs;  // while a path is suspect
constexpr int64_t kLookAgainNs = 5 * kMillisecondNs;    // at what is overdue

// From kUp on there is a connection.
enum class PathState {
    kDown,      // no connection
    kDialling,  // no connection, and one is tried
    kUp,        // it carries
    kLate,      // what it carries was overtaken: nothing new until it has answered a probe behind that
    kSuspect,   // silent for longer than its patience
    kDead       // given up; its connection is about to be taken away
};

class Standing {
  public:
    PathState state() const { return state_; }

    bool is_connected() const { return state_ >= PathState::kUp; }

    // Since when it is late or suspect.
    int64_t since_ns() const { return since_ns_; }

    void dialling();
    void dial_failed();
    // A new connection, whose life begins without any trace of the last one.
    void connected();
    void lost();
    // Something that it was given at `sent_ns` has been answered: a probe, or a frame that went nowhere else. One that
    // is late has to answer what came last.
    void answered(int64_t sent_ns);
    // There is no other path to compare it with: it carries everything, and the system is patient.
    void alone();

    // The other end's system has all that it was sent, or more than it had: the rail itself is not dead.
    void carried(int64_t now_ns) { carried_ns_ = now_ns; }

    // Some bytes came, or left for the other end out of many: slow, not deaf.
    void progressed(int64_t now_ns) { carried_ns_ = progress_ns_ = now_ns; }

    // What it carries is taken over by others, and a probe is sent behind it.
    void overtaken(int64_t now_ns);
    // Its oldest unacknowledged frame, or that probe, is older than its patience.
    void suspect(int64_t now_ns);

    void probed(int64_t now_ns) { probed_ns_ = now_ns; }

    // Whether a probe should go out now.
    bool wants_probe(int64_t now_ns) const;
    // `witness_ns`: the latest moment at which any other path to the same process was given something that has been
    // answered (0: never). True once: it is dead.
    bool judge(int64_t now_ns, int64_t witness_ns);
    // When a suspect is to be looked at again; INT64_MAX: it is none.
    int64_t next_ns() const;

  private:
    PathState state_ = PathState::kDown;
    int64_t since_ns_ = 0;
    int64_t carried_ns_ = 0;
    int64_t progress_ns_ = 0;
    int64_t probed_ns_ = 0;
};

}  // namespace taskd::rail
