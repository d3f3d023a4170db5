// What one link delivers: its rate, its round trip, and how much may be on its way.
//
// Why: a message is shared among rails by what each of them really delivers, so a rail at one hundredth of its speed
// must get one hundredth of the bytes. What is known of a rail grows old: one that carries little is not measured, and
// would carry little for ever. So there are two rates: what was measured, which bounds how much may be on its way, and
// what is believed, which doubles every kForgetNs for which nothing contradicts it, up to that of the fastest link of
// the session. A rail that came back, or was slow for a while, is tried again with a few pieces before a second has
// passed; if it is slow still, they are taken over by others (overtaking.hpp) and measure it.
//
// Pure: it is told what happened and when. Does not: send, probe, or look at a clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rail/transport.hpp"

namespace taskd::rail {

constexpr size_t kShortestPiece = 16 << 10;
constexpr size_t kWidestWindow = 4 << 20;
constexpr int64_t kForgetNs = 50 * kMillisecondNs;
constexpr int64_t kPatienceFloorNs = 30 * kMillisecondNs;
constexpr int64_t kLossLookNs =
    200 * kMillisecondNs;  // how often somebody looks whether the network is gone as a whole

// How the links of a session compare with each other at one moment.
struct Yardstick {
    int64_t now_ns = 0;
    double fastest = 0;       // bytes per second that the best of them was measured to deliver
    int64_t quickest_ns = 0;  // the shortest of their round trips
};

class Pace {
  public:
    // How things stood when a frame was sent.
    struct Mark {
        int64_t sent_ns = 0;
        uint64_t delivered = 0;
        int64_t delivered_ns = 0;
        int64_t delivered_sent_ns = 0;  // when what was delivered last had been sent
        bool was_busy = false;  // more than it was on its way, so that it shows the rail's rate and not the sender's
    };

    Mark sent(size_t bytes, int64_t now_ns);
    // A frame is acknowledged that went nowhere else.
    void acknowledged(size_t bytes, const Mark& mark, int64_t now_ns);

    // Not on its way any more, for another reason; or nobody knows on which link it came.
    void forgotten(size_t bytes) { in_flight_ -= bytes < in_flight_ ? bytes : in_flight_; }

    // A probe has been answered. They are sent on all links at the same moments, so that the answers can be compared.
    void answered(int64_t trip_ns, int64_t now_ns);

    // All of so many bytes, which waited for nothing but this link, took so long.
    void drained(size_t bytes, int64_t took_ns, int64_t now_ns);

    size_t in_flight() const { return in_flight_; }

    int64_t round_trip_ns() const { return smooth_ns_; }

    // Bytes per second, as measured; a guess until something was.
    double rate() const;
    // As believed.
    double rate(const Yardstick& by) const;
    // How long until `more` bytes would have arrived, as believed.
    int64_t delay_ns(size_t more, const Yardstick& by) const;
    // About a millisecond's worth, as measured.
    size_t piece() const;
    size_t window() const;
    // Whether a piece may be added to what is on its way.
    bool has_room(const Yardstick& by) const;
    // How old the oldest unacknowledged frame may get.
    int64_t patience_ns() const;

  private:
    bool is_measured() const { return best_now_ > 0 || best_before_ > 0; }

    int64_t latency_ns() const;

    uint64_t delivered_ = 0;
    int64_t delivered_ns_ = 0;  // the last time, or when it began to have something to do
    int64_t delivered_sent_ns_ = 0;
    size_t in_flight_ = 0;
    int64_t smooth_ns_ = 0;
    int64_t deviation_ns_ = 0;
    // The quickest probe of this stretch and of the one before: nothing makes one quick that is not.
    int64_t least_now_ns_ = 0;
    int64_t least_before_ns_ = 0;
    int64_t least_began_ns_ = 0;
    // The fastest of this stretch and of the one before: a descheduled peer makes samples slow, nothing makes them
    // fast.
    double best_now_ = 0;
    double best_before_ = 0;
    int64_t stretch_began_ns_ = 0;
    int64_t measured_ns_ = 0;  // when the rail itself last set the rate
};

}  // namespace taskd::rail
