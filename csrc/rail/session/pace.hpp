// The pace of one link: its rate, its round trip, and how much may be in flight.
//
// Why: a message is shared among rails by what each of them really delivers, so a rail at one hundredth of its speed
// must get one hundredth of the bytes. But what is known about a rail grows old: a rail that carries little is not
// measured, and would carry little for ever. So there are two rates. The measured rate limits how much may be in
// flight. The believed rate doubles every kForgetNs while nothing contradicts it, up to the rate of the fastest link of
// the session. So a rail that came back, or that was slow for a while, is tried again with a few pieces before a second
// has passed. If it is still slow, other paths take over these pieces (overtaking.hpp), and the pieces measure it.
//
// Pure: it is told what happened and when. Does not: send, probe, or read a clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rail/transport.hpp"

namespace taskd::rail {

constexpr size_t kShortestPiece = 16 << 10;
constexpr size_t kWidestWindow = 4 << 20;
constexpr int64_t kForgetNs = 50 * kMillisecondNs;
constexpr int64_t kPatienceFloorNs = 30 * kMillisecondNs;
constexpr int64_t kLossLookNs = 200 * kMillisecondNs;  // how often somebody checks whether the whole network is gone

// How the links of a session compare with each other at one moment.
struct Yardstick {
    int64_t now_ns = 0;
    double fastest = 0;       // bytes per second: the best measured rate of all links
    int64_t quickest_ns = 0;  // the shortest round trip of all links
};

class Pace {
  public:
    // The state of the link when a frame was sent.
    struct Mark {
        int64_t sent_ns = 0;
        uint64_t delivered = 0;
        int64_t delivered_ns = 0;
        int64_t delivered_sent_ns = 0;  // when the frame that was delivered last had been sent
        bool was_busy = false;          // at least half a window was in flight: shows the rail's rate, not the sender's
    };

    Mark sent(size_t bytes, int64_t now_ns);
    // A frame that went nowhere else has been acknowledged.
    void acknowledged(size_t bytes, const Mark& mark, int64_t now_ns);

    // The bytes are not in flight any more for another reason, or nobody knows which link brought them.
    void forgotten(size_t bytes) { in_flight_ -= bytes < in_flight_ ? bytes : in_flight_; }

    // A probe has been answered. Probes are sent on all links at the same moments, so that the answers can be compared.
    void answered(int64_t trip_ns, int64_t now_ns);

    // This many bytes waited for nothing but this link, and took this long.
    void drained(size_t bytes, int64_t took_ns, int64_t now_ns);

    size_t in_flight() const { return in_flight_; }

    int64_t round_trip_ns() const { return smooth_ns_; }

    // Measured bytes per second; a guess until something was measured.
    double rate() const;
    // Believed bytes per second.
    double rate(const Yardstick& by) const;
    // How long it would take until `more` bytes have arrived, at the believed rate.
    int64_t delay_ns(size_t more, const Yardstick& by) const;
    // About as many bytes as the link delivers in a millisecond, as measured.
    size_t piece() const;
    size_t window() const;
    // Whether one more piece may be in flight.
    bool has_room(const Yardstick& by) const;
    // How old the oldest unacknowledged frame may become.
    int64_t patience_ns() const;

  private:
    bool is_measured() const { return best_now_ > 0 || best_before_ > 0; }

    int64_t latency_ns() const;

    uint64_t delivered_ = 0;
    int64_t delivered_ns_ = 0;  // time of the last delivery, or when the link began to have work
    int64_t delivered_sent_ns_ = 0;
    size_t in_flight_ = 0;
    int64_t smooth_ns_ = 0;
    int64_t deviation_ns_ = 0;
    // The quickest probe of this stretch and of the one before: nothing can make a slow probe look quick.
    int64_t least_now_ns_ = 0;
    int64_t least_before_ns_ = 0;
    int64_t least_began_ns_ = 0;
    // The fastest sample of this stretch and of the one before: a descheduled peer makes samples slow, but nothing
    // makes them too fast.
    double best_now_ = 0;
    double best_before_ = 0;
    int64_t stretch_began_ns_ = 0;
    int64_t measured_ns_ = 0;  // when the rail itself last set the rate
};

}  // namespace taskd::rail
