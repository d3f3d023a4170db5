#include "rail/session/standing.hpp"

namespace taskd::rail {

void Standing::dialling() {
    if (state_ == PathState::kDown)
        state_ = PathState::kDialling;
}

void Standing::dial_failed() {
    if (state_ == PathState::kDialling)
        state_ = PathState::kDown;
}

void Standing::connected() {
    *this = Standing();
    state_ = PathState::kUp;
}

void Standing::lost() {
    *this = Standing();
}

void Standing::answered(int64_t sent_ns) {
    if (is_connected() && (state_ != PathState::kLate || sent_ns >= since_ns_))
        state_ = PathState::kUp;
}

void Standing::alone() {
    if (is_connected())
        state_ = PathState::kUp;
}

void Standing::overtaken(int64_t now_ns) {
    if (state_ != PathState::kUp)
        return;
    state_ = PathState::kLate;
    since_ns_ = now_ns;
}

void Standing::suspect(int64_t now_ns) {
    if (state_ != PathState::kUp && state_ != PathState::kLate)
        return;
    state_ = PathState::kSuspect;
    since_ns_ = now_ns;
    carried_ns_ = progress_ns_ = now_ns;
    probed_ns_ = 0;
}

bool Standing::wants_probe(int64_t now_ns) const {
    return state_ == PathState::kSuspect && (probed_ns_ == 0 || now_ns - probed_ns_ >= kProbeEveryNs);
}

bool Standing::judge(int64_t now_ns, int64_t witness_ns) {
    if (state_ != PathState::kSuspect)
        return false;
    const bool is_dead = now_ns - carried_ns_ >= kDeathNs;
    if (!is_dead && now_ns - progress_ns_ < kDeafNs)
        return false;
    // The witness must have been asked one probe interval after this path was. A process that answered that has also
    // had time to read this path's probe.
    if (witness_ns < (is_dead ? carried_ns_ : progress_ns_) + kProbeEveryNs)
        return false;
    state_ = PathState::kDead;
    return true;
}

int64_t Standing::next_ns() const {
    if (state_ != PathState::kSuspect)
        return INT64_MAX;
    return probed_ns_ == 0 ? since_ns_ : probed_ns_ + kProbeEveryNs;
}

}  // namespace taskd::rail
