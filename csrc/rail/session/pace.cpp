#include "rail/session/pace.hpp"

#include <algorithm>
#include <cmath>

namespace taskd::rail {
namespace {

constexpr double kUnknownRate = 100e6;
constexpr size_t kFirstWindow = 256 << 10;
constexpr size_t kFirstPiece = 64 << 10;
constexpr size_t kLongest = 1 << 20;
constexpr int64_t kStretchNs = 50 * kMillisecondNs;
constexpr int64_t kLeastStretchNs = 500 * kMillisecondNs;
constexpr int64_t kQueueNs = 2 * kMillisecondNs;  // a rail is kept supplied with this much work
constexpr double kMoreShare = 0.125;
constexpr double kMostDoublings = 40;
constexpr double kSecond = 1e9;
constexpr int64_t kLongestPatienceNs = 1000 * kMillisecondNs;

}  // namespace

Pace::Mark Pace::sent(size_t bytes, int64_t now_ns) {
    if (in_flight_ == 0)
        delivered_ns_ = delivered_sent_ns_ = now_ns;
    const Mark mark{now_ns, delivered_, delivered_ns_, delivered_sent_ns_, in_flight_ * 2 >= window()};
    in_flight_ += bytes;
    return mark;
}

void Pace::acknowledged(size_t bytes, const Mark& mark, int64_t now_ns) {
    forgotten(bytes);
    delivered_ += bytes;
    delivered_ns_ = now_ns;
    delivered_sent_ns_ = std::max(delivered_sent_ns_, mark.sent_ns);
    const int64_t trip = std::max<int64_t>(now_ns - mark.sent_ns, 1);
    if (smooth_ns_ == 0) {
        smooth_ns_ = trip;
        deviation_ns_ = trip / 2;
    } else {
        deviation_ns_ += ((trip > smooth_ns_ ? trip - smooth_ns_ : smooth_ns_ - trip) - deviation_ns_) / 4;
        smooth_ns_ += (trip - smooth_ns_) / 8;
    }
    // The time counts from the last delivery before the frame was sent, because part of what has come since was in
    // flight already. The rate is no faster than the sending was, because delayed acknowledgements come all at once.
    const auto took =
        static_cast<double>(std::max({now_ns - mark.delivered_ns, mark.sent_ns - mark.delivered_sent_ns, trip}));
    const double sample = static_cast<double>(delivered_ - mark.delivered) * kSecond / took;
    if (mark.was_busy)
        measured_ns_ = now_ns;
    if (now_ns - stretch_began_ns_ > kStretchNs && mark.was_busy) {
        best_before_ = best_now_;
        best_now_ = 0;
        stretch_began_ns_ = now_ns;
    }
    // A sender that had little to send measured itself. Its sample says something about the rail only if it was fast.
    if (mark.was_busy || sample > std::max(best_now_, best_before_))
        best_now_ = std::max(best_now_, sample);
}

void Pace::answered(int64_t trip_ns, int64_t now_ns) {
    if (now_ns - least_began_ns_ > kLeastStretchNs) {
        least_before_ns_ = least_now_ns_;
        least_now_ns_ = 0;
        least_began_ns_ = now_ns;
    }
    least_now_ns_ = least_now_ns_ == 0 ? std::max<int64_t>(trip_ns, 1) : std::clamp<int64_t>(trip_ns, 1, least_now_ns_);
}

void Pace::drained(size_t bytes, int64_t took_ns, int64_t now_ns) {
    // This was so little or so quick that it shows the latency and not the rate.
    if (bytes < kShortestPiece || took_ns < kQueueNs + 2 * latency_ns())
        return;
    best_now_ = static_cast<double>(bytes) * kSecond / static_cast<double>(took_ns);
    best_before_ = 0;
    stretch_began_ns_ = measured_ns_ = now_ns;
}

int64_t Pace::latency_ns() const {
    if (least_now_ns_ == 0 || least_before_ns_ == 0)
        return std::max(least_now_ns_, least_before_ns_);
    return std::min(least_now_ns_, least_before_ns_);
}

double Pace::rate() const {
    return is_measured() ? std::max(best_now_, best_before_) : kUnknownRate;
}

double Pace::rate(const Yardstick& by) const {
    const double measured = rate();
    if (measured >= by.fastest)
        return measured;
    const double doublings = static_cast<double>(by.now_ns - measured_ns_) / static_cast<double>(kForgetNs);
    return std::min(measured * std::exp2(std::clamp(doublings - 1, 0.0, kMostDoublings)), by.fastest);
}

int64_t Pace::delay_ns(size_t more, const Yardstick& by) const {
    const auto bytes = static_cast<double>(in_flight_ + more);
    return static_cast<int64_t>(bytes * kSecond / rate(by)) + latency_ns() / 2;
}

size_t Pace::piece() const {
    if (!is_measured())
        return kFirstPiece;
    const auto worth = static_cast<size_t>(rate() * kMillisecondNs / kSecond);
    return std::clamp(worth & ~size_t{4095}, kShortestPiece, kLongest);
}

size_t Pace::window() const {
    if (!is_measured())
        return kFirstWindow;
    const double worth = rate() * static_cast<double>(latency_ns() + kQueueNs) / kSecond;
    return std::clamp(static_cast<size_t>(worth), 2 * piece(), kWidestWindow);
}

bool Pace::has_room(const Yardstick& by) const {
    size_t window = this->window();
    // Links that wait for the same thing (a processor, a switch) would keep their first shares for ever, because each
    // delivers what it was given. So a link that is no later than the others may have a little more in flight than
    // before. The extra is the same for all of these links, and this makes them equal.
    if (is_measured() && smooth_ns_ <= by.quickest_ns + by.quickest_ns / 2)
        window += static_cast<size_t>(by.fastest * kQueueNs / kSecond * kMoreShare);
    return in_flight_ < window;
}

int64_t Pace::patience_ns() const {
    const auto queue = static_cast<int64_t>(static_cast<double>(in_flight_) * kSecond / rate());
    return std::clamp(smooth_ns_ + 4 * deviation_ns_ + queue, kPatienceFloorNs, kLongestPatienceNs);
}

}  // namespace taskd::rail
