#include "rail/session/overtaking.hpp"

namespace taskd::rail {
namespace {

constexpr int64_t kGainNs = 1 * kMillisecondNs;
constexpr int64_t kArrivedLookNs = 2 * kMillisecondNs;  // until the next check of what has arrived unacknowledged
constexpr int kMostLooks = 256;

}  // namespace

// Returns the only path that carries the frame; null: there are several, or none.
Path* Overtaking::carrier_of(const Numbered& frame) {
    if (frame.is_acknowledged || frame.is_queued || frame.sends != 1)
        return nullptr;
    for (Path& path : paths_) {
        if (path.carries(frame))
            return path.link() ? &path : nullptr;
    }
    return nullptr;
}

// Whether the frame is late although the other process is awake. `asks`: a probe is needed to know whether it is awake.
bool Overtaking::is_overtaken(const Numbered& frame, const Path& slow, const Yardstick& by, bool* asks) {
    // A frame behind one that did not come does not come either.
    const bool is_behind = slow.state() != PathState::kUp && slow.probes.heard_ns() < frame.mark.sent_ns;
    if (frame.late_ns > by.now_ns && !is_behind) {
        look_at_ns_ = std::min(look_at_ns_, frame.late_ns);
        return false;
    }
    const bool has_arrived = !slow.holds(frame.end) && by.now_ns - frame.mark.sent_ns < kDeafNs;
    bool has_other = false;
    for (const Path& other : paths_) {
        // A path that is out of use has nothing to wait for: its answers would always be quicker.
        if (&other == &slow || !other.is_up() || !other.orders.is_in_use())
            continue;
        has_other = true;
        if (!has_arrived && other.probes.witness_ns() >= frame.mark.sent_ns)
            return true;
    }
    // What has arrived is not sent again. But its acknowledgement may be lost on a silent rail, and a probe makes the
    // other side repeat it.
    const int64_t asked_since = std::max(frame.mark.sent_ns, has_arrived ? by.now_ns - kProbeEveryNs : 0);
    *asks = *asks || (has_other && prober_.asked_ns() < asked_since);
    look_at_ns_ = std::min(look_at_ns_, has_arrived ? by.now_ns + kArrivedLookNs : by.now_ns);
    return false;
}

// Whether, at the end of a message, an idle path would be much quicker, after `taken` bytes of the same kind.
bool Overtaking::is_slower(const Numbered& frame, const Path& slow, size_t taken, const Yardstick& by) const {
    if (frame.payload() == nullptr)
        return false;
    const bool has_quicker = std::any_of(paths_.begin(), paths_.end(), [&](const Path& idle) {
        return &idle != &slow && idle.is_up() && idle.orders.is_in_use() && !idle.link()->blocked() &&
               idle.pace().in_flight() == 0 &&
               frame.expected_ns > by.now_ns + 3 * idle.pace().delay_ns(taken + frame.header.length, by) + kGainNs;
    });
    return has_quicker && slow.holds(frame.end);
}

// True: some frames are to go out again.
bool Overtaking::look() {
    if (!paths_.can_compare())
        return false;
    const Yardstick by = paths_.yardstick(host_.now_ns());
    const bool is_end = !outbox_.has_large();
    const bool is_idle = std::any_of(paths_.begin(), paths_.end(),
                                     [](const Path& path) { return path.is_up() && path.pace().in_flight() == 0; });
    if (by.now_ns < look_at_ns_ && !(is_end && is_idle))
        return false;
    look_at_ns_ = INT64_MAX;
    bool any = false;
    bool asks = false;
    size_t taken = 0;
    int looks = 0;
    for (Numbered& frame : outbox_.unacknowledged()) {
        if (++looks > kMostLooks)
            break;
        Path* const slow = carrier_of(frame);
        if (slow == nullptr ||
            (!is_overtaken(frame, *slow, by, &asks) && !(is_end && is_slower(frame, *slow, taken, by))))
            continue;
        any = true;
        taken += frame.header.length;
        add(slow->record.hedged, 1);
        outbox_.send_again(frame);
        be_late(*slow, by.now_ns);
    }
    if (asks)
        prober_.ask(by.now_ns);
    return any;
}

void Overtaking::be_late(Path& path, int64_t now) {
    if (path.state() != PathState::kUp)
        return;
    path.be_late(now);
    if (prober_.asked_ns() != now)
        prober_.ask(now);
    // The acknowledgements that went over this path so far may be lost.
    acknowledger_.demand();
}

}  // namespace taskd::rail
