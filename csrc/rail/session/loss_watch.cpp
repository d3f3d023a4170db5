#include "rail/session/loss_watch.hpp"

#include <algorithm>

namespace taskd::rail {
namespace {

constexpr int kQuietLooks = 5;  // in a row: checks and not time, because the whole process may have been stopped
constexpr int64_t kHeldAtLeastNs = kMillisecondNs;

}  // namespace

void LossWatch::connected() {
    lost_ns_ = silent_ns_ = 0;
    quiet_looks_ = 0;
}

bool LossWatch::all_lost(int64_t now) {
    if (lost_ns_ != 0)
        return false;
    lost_ns_ = silent_ns_ != 0 ? silent_ns_ : now;
    return true;
}

void LossWatch::rest(bool is_connected) {
    quiet_looks_ = 0;
    if (is_connected)
        silent_ns_ = 0;
}

LossWatch::Finding LossWatch::look(const Sight& sight, int64_t now) {
    look_ns_ = now + kLossLookNs;
    const bool is_silent = sight.awaited == sight.connected && sight.brought == brought_;
    const bool is_quiet = !sight.has_sent && sight.awaited == 0 && sight.read == read_;
    brought_ = sight.brought;
    read_ = sight.read;
    if (!is_silent)
        silent_ns_ = 0;
    if (!is_silent || quiet_looks_ == 0)
        moved_ns_ = is_silent ? now - kLossLookNs : now;  // the last check may be long ago: nothing had to move since
    quiet_looks_ = is_silent || is_quiet ? quiet_looks_ + 1 : 0;
    if (quiet_looks_ < kQuietLooks || silent_ns_ != 0)
        return Finding::kNothing;
    quiet_looks_ = 0;
    if (is_quiet)
        return Finding::kQuiet;
    silent_ns_ = moved_ns_;
    return Finding::kSilent;
}

int LossWatch::refusals_needed(bool is_leaving) const {
    return is_leaving ? 1 : std::max(retry_.count, 1);
}

LossWatch::Verdict LossWatch::judge(bool all_refuse, bool is_leaving, int64_t now) const {
    if (since_ns() == 0)
        return Verdict::kWait;
    if (!retry_.enabled)
        return Verdict::kNoRetry;
    const int64_t lost_for_ns = now - since_ns();
    const bool is_refused = all_refuse && (is_leaving || lost_for_ns > rounds_ns());
    return is_refused || lost_for_ns > nanoseconds(retry_.hold) + rounds_ns() ? Verdict::kTooLong : Verdict::kWait;
}

int64_t LossWatch::limit_ns() const {
    return nanoseconds(retry_.hold) + rounds_ns() + kHeldAtLeastNs;
}

int64_t LossWatch::next_ns(bool is_waiting, int64_t now) const {
    const int64_t next = is_waiting ? std::max(look_ns_, now + kHeldAtLeastNs) : INT64_MAX;
    return since_ns() == 0 ? next : std::min(next, since_ns() + limit_ns());
}

}  // namespace taskd::rail
