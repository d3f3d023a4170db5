#include "pace.hpp"

#include <algorithm>

namespace taskd::rail {
namespace {

constexpr double kUnknownRate = 100e6;
constexpr size_t kFirstWindow = 256 << 10;
constexpr size_t kFirstPiece = 64 << 10;
constexpr size_t kLongest = 1 << 20;
constexpr int64_t kStretchNs = 100 * kMillisecondNs;
constexpr int64_t kQueueNs = 2 * kMillisecondNs;  // of work that a rail is kept supplied with
constexpr double kSecond = 1e9;
constexpr int64_t kLongestPatienceNs = 1000 * kMillisecondNs;

}  // namespace

void Pace::acknowledged(size_t bytes, int64_t sent_ns, uint64_t delivered_then, bool was_busy, bool is_clean,
                        int64_t now_ns) {
    forgotten(bytes);
    delivered_ += bytes;
    if (!is_clean)
        return;
    const int64_t trip = std::max<int64_t>(now_ns - sent_ns, 1);
    if (smooth_ns_ == 0) {
        smooth_ns_ = trip;
        deviation_ns_ = trip / 2;
        least_ns_ = trip;
    } else {
        deviation_ns_ += ((trip > smooth_ns_ ? trip - smooth_ns_ : smooth_ns_ - trip) - deviation_ns_) / 4;
        smooth_ns_ += (trip - smooth_ns_) / 8;
        least_ns_ = std::min(least_ns_, trip);
    }
    const double sample = static_cast<double>(delivered_ - delivered_then) * kSecond / static_cast<double>(trip);
    if (now_ns - stretch_began_ns_ > kStretchNs && was_busy) {
        best_before_ = best_now_;
        best_now_ = 0;
        stretch_began_ns_ = now_ns;
    }
    // A sender that had little to send measured itself; only if that was fast does it say something of the rail.
    if (was_busy || sample > std::max(best_now_, best_before_))
        best_now_ = std::max(best_now_, sample);
}

double Pace::rate() const {
    const double best = std::max(best_now_, best_before_);
    return best > 0 ? best : kUnknownRate;
}

int64_t Pace::delay_ns(size_t more) const {
    return static_cast<int64_t>(static_cast<double>(in_flight_ + more) * kSecond / rate()) + least_ns_ / 2;
}

size_t Pace::piece() const {
    if (best_now_ <= 0 && best_before_ <= 0)
        return kFirstPiece;
    const auto worth = static_cast<size_t>(rate() * kMillisecondNs / kSecond);
    return std::clamp(worth & ~size_t{4095}, kShortestPiece, kLongest);
}

size_t Pace::window() const {
    if (best_now_ <= 0 && best_before_ <= 0)
        return kFirstWindow;
    const double worth = rate() * static_cast<double>(least_ns_ + kQueueNs) / kSecond;
    return std::clamp(static_cast<size_t>(worth), 2 * piece(), kWidestWindow);
}

int64_t Pace::patience_ns() const {
    const auto queue = static_cast<int64_t>(static_cast<double>(in_flight_) * kSecond / rate());
    return std::clamp(smooth_ns_ + 4 * deviation_ns_ + queue, kSilenceFloorNs, kLongestPatienceNs);
}

void Silence::suspect(int64_t now_ns) {
    if (standing_ != Standing::kUp)
        return;
    standing_ = Standing::kSuspect;
    since_ns_ = now_ns;
    progress_ns_ = now_ns;
    probed_ns_ = 0;
}

bool Silence::wants_probe(int64_t now_ns) const {
    return standing_ == Standing::kSuspect && (probed_ns_ == 0 || now_ns - probed_ns_ >= kProbeEveryNs);
}

bool Silence::judge(int64_t now_ns, int64_t witness_ns) {
    if (standing_ != Standing::kSuspect || now_ns - progress_ns_ < kDeathNs)
        return false;
    // The witness must have been asked a round after this link was: who answered that has come by this link's probe
    // too.
    if (witness_ns < progress_ns_ + kProbeEveryNs)
        return false;
    standing_ = Standing::kDead;
    return true;
}

int64_t Silence::next_ns() const {
    if (standing_ != Standing::kSuspect)
        return INT64_MAX;
    return probed_ns_ == 0 ? since_ns_ : probed_ns_ + kProbeEveryNs;
}

}  // namespace taskd::rail
