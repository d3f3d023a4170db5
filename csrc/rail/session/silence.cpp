#include "rail/session/silence.hpp"

namespace taskd::rail {

void Silence::overtaken(int64_t now_ns) {
    if (standing_ != Standing::kUp)
        return;
    standing_ = Standing::kLate;
    since_ns_ = now_ns;
}

void Silence::suspect(int64_t now_ns) {
    if (standing_ != Standing::kUp && standing_ != Standing::kLate)
        return;
    standing_ = Standing::kSuspect;
    since_ns_ = now_ns;
    carried_ns_ = progress_ns_ = now_ns;
    probed_ns_ = 0;
}

bool Silence::wants_probe(int64_t now_ns) const {
    return standing_ == Standing::kSuspect && (probed_ns_ == 0 || now_ns - probed_ns_ >= kProbeEveryNs);
}

bool Silence::judge(int64_t now_ns, int64_t witness_ns) {
    if (standing_ != Standing::kSuspect)
        return false;
    const bool is_dead = now_ns - carried_ns_ >= kDeathNs;
    if (!is_dead && now_ns - progress_ns_ < kDeafNs)
        return false;
    // The witness must have been asked a round after this link was: who answered that has come by this link's probe
    // too.
    if (witness_ns < (is_dead ? carried_ns_ : progress_ns_) + kProbeEveryNs)
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
