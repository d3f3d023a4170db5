// What one link delivers, and whether it still does: rate, round trip, how much may be on its way; up, suspect, down.
//
// Why: a message is shared among rails by what each of them really delivers, so a rail at one hundredth of its speed
// must get one hundredth of the bytes. And silence means nothing by itself: its length is judged by the link's own
// round trip, and a link is taken for dead only if others to the same process answered while it did not.
//
// Pure: it is told what happened and when. Does not: send, probe, or look at a clock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::rail {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kSilenceFloorNs = 30 * kMillisecondNs;
constexpr int64_t kDeathNs = 100 * kMillisecondNs;      // silent for so long after a probe, while others answered
constexpr int64_t kProbeEveryNs = 40 * kMillisecondNs;  // while a link is suspect
constexpr size_t kShortestPiece = 16 << 10;
constexpr size_t kWidestWindow = 4 << 20;

class Pace {
  public:
    void sent(size_t bytes) { in_flight_ += bytes; }

    // A frame, sent once if `is_clean`, is acknowledged. `delivered_then`: delivered() when it was sent; `was_busy`:
    // more than it was on its way then, so that the sample shows the rail's rate and not the sender's.
    void acknowledged(size_t bytes, int64_t sent_ns, uint64_t delivered_then, bool was_busy, bool is_clean,
                      int64_t now_ns);

    // Not on its way any more, for another reason.
    void forgotten(size_t bytes) { in_flight_ -= bytes < in_flight_ ? bytes : in_flight_; }

    uint64_t delivered() const { return delivered_; }

    size_t in_flight() const { return in_flight_; }

    bool busy() const { return in_flight_ * 2 >= window(); }

    int64_t round_trip_ns() const { return smooth_ns_; }

    // Bytes per second; a guess until something was measured.
    double rate() const;
    // How long until `more` bytes would have arrived.
    int64_t delay_ns(size_t more) const;
    // About a millisecond's worth.
    size_t piece() const;
    size_t window() const;
    // How old the oldest unacknowledged frame may get.
    int64_t patience_ns() const;

  private:
    uint64_t delivered_ = 0;
    size_t in_flight_ = 0;
    int64_t smooth_ns_ = 0;
    int64_t deviation_ns_ = 0;
    int64_t least_ns_ = 0;
    // The fastest of this stretch and of the one before: a descheduled peer makes samples slow, nothing makes them
    // fast.
    double best_now_ = 0;
    double best_before_ = 0;
    int64_t stretch_began_ns_ = 0;
};

enum class Standing { kUp, kSuspect, kDead };

// One connected link's life in silence.
class Silence {
  public:
    Standing standing() const { return standing_; }

    // Something it sent has been answered: an acknowledgement of a frame that went nowhere else, or a probe.
    void answered() { standing_ = Standing::kUp; }

    // Some bytes came, or left for the other end: slow, not dead.
    void progressed(int64_t now_ns) { progress_ns_ = now_ns; }

    // Its oldest unacknowledged frame is older than its patience.
    void suspect(int64_t now_ns);

    void probed(int64_t now_ns) { probed_ns_ = now_ns; }

    // Whether a probe should go out now.
    bool wants_probe(int64_t now_ns) const;
    // `witness_ns`: when the latest answered probe of any other link to the same process had been sent (0: never).
    // True once: it is dead.
    bool judge(int64_t now_ns, int64_t witness_ns);
    // When to look again; INT64_MAX: not before something else happens.
    int64_t next_ns() const;

  private:
    Standing standing_ = Standing::kUp;
    int64_t since_ns_ = 0;
    int64_t progress_ns_ = 0;
    int64_t probed_ns_ = 0;
};

}  // namespace taskd::rail
