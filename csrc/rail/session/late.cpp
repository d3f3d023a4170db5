// How a session takes over from one link what another brings sooner.
//
// Why: an operation waits for its last byte, so a rail that is slow, or silent without a word, costs what its last
// piece costs. Two things tell, long before silence by itself would: something that was sent later over another link
// has been answered while a frame is later than twice what was expected of its link; or, at the end of a message, a
// link that has nothing to do would bring the frame sooner than the one that has it is expected to. The frame goes out
// again, and what comes second is dropped by its number. But only if the rail has not brought it: what the other end's
// system has waits for a busy process, and a copy would only be more work for that one.
//
// The link that was overtaken gets nothing new until it has answered a probe behind everything it carries: a slow rail
// is then measured by what it carried and never given more than it drains, and a silent one waits for judgement
// (health.cpp).
//
// Does not: take anything down.
#include <algorithm>
#include <cerrno>
#include <string>

#include "rail/session/session.hpp"

namespace taskd::rail {
namespace {

constexpr int64_t kGainNs = 1 * kMillisecondNs;
constexpr int64_t kLookAgainNs = 2 * kMillisecondNs;
constexpr int kMostLooks = 256;

}  // namespace

// The only link that carries it; null: there are several, or none.
Slot* Session::carrier_of(const Numbered& frame) {
    if (frame.is_acknowledged || frame.is_queued || frame.sends != 1)
        return nullptr;
    for (size_t index = 0; index < slots_.size(); ++index) {
        if ((frame.carriers >> index & 1) != 0)
            return slots_[index].link ? &slots_[index] : nullptr;
    }
    return nullptr;
}

// How many of a link's bytes the other end's system has, whether its process has read them or not.
uint64_t Session::brought(const Slot& slot) const {
    const auto queued = static_cast<uint64_t>(std::max(sockets_.queued(slot.link->fd()), 0L));
    return slot.link->bytes_written() - std::min(queued, slot.link->bytes_written());
}

// The rail has not brought what ends there, and it is not the other end that has no room for it. Everything else waits
// for the other process, and no other rail would be quicker.
bool Session::holds(const Slot& slot, uint64_t end) const {
    return brought(slot) < end && sockets_.is_awaited(slot.link->fd());
}

// Late, although the other process is awake. `asks`: that is not known yet.
bool Session::is_overtaken(const Numbered& frame, const Slot& slow, const Yardstick& by, bool* asks) {
    // What is behind a frame that did not come does not come either.
    const bool is_behind = slow.silence.standing() != Standing::kUp && slow.heard_ns < frame.mark.sent_ns;
    if (frame.late_ns > by.now_ns && !is_behind) {
        look_at_ns_ = std::min(look_at_ns_, frame.late_ns);
        return false;
    }
    const bool has_arrived = !holds(slow, frame.end) && by.now_ns - frame.mark.sent_ns < kDeafNs;
    bool has_other = false;
    for (const Slot& other : slots_) {
        // One that is out of use has nothing to wait for: its answers would always be quicker.
        if (&other == &slow || !other.up() || !other.in_use())
            continue;
        has_other = true;
        if (!has_arrived && other.witness_ns >= frame.mark.sent_ns)
            return true;
    }
    // What has arrived is not sent again, but the word of that may be lost on a silent rail; whoever is asked says it.
    const int64_t asked_since = std::max(frame.mark.sent_ns, has_arrived ? by.now_ns - kProbeEveryNs : 0);
    *asks = *asks || (has_other && asked_ns_ < asked_since);
    look_at_ns_ = std::min(look_at_ns_, has_arrived ? by.now_ns + kLookAgainNs : by.now_ns);
    return false;
}

// At the end of a message: a link with nothing to do would be quicker by far, after `taken` bytes of the same kind.
bool Session::is_slower(const Numbered& frame, const Slot& slow, size_t taken, const Yardstick& by) const {
    if (frame.payload() == nullptr)
        return false;
    const bool has_quicker = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& idle) {
        return &idle != &slow && idle.up() && idle.in_use() && !idle.link->blocked() && idle.pace.in_flight() == 0 &&
               frame.expected_ns > by.now_ns + 3 * idle.pace.delay_ns(taken + frame.header.length, by) + kGainNs;
    });
    return has_quicker && holds(slow, frame.end);
}

// True: some frames are to go out again.
bool Session::overtake() {
    if (slots_.size() < 2 || connected() < 2)
        return false;
    const Yardstick by = yardstick();
    const bool is_end = !outbox_.has_large();
    const bool is_idle = std::any_of(slots_.begin(), slots_.end(),
                                     [](const Slot& slot) { return slot.up() && slot.pace.in_flight() == 0; });
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
        Slot* const slow = carrier_of(frame);
        if (slow == nullptr ||
            (!is_overtaken(frame, *slow, by, &asks) && !(is_end && is_slower(frame, *slow, taken, by))))
            continue;
        any = true;
        taken += frame.header.length;
        add(slow->record->hedged, 1);
        outbox_.send_again(frame);
        be_late(*slow, by.now_ns);
    }
    if (asks)
        ask(by.now_ns);
    return any;
}

void Session::be_late(Slot& slot, int64_t now) {
    if (slot.silence.standing() != Standing::kUp)
        return;
    slot.silence.overtaken(now);
    const long queued = sockets_.queued(slot.link->fd());
    slot.late_ns = now;
    slot.late_bytes = static_cast<size_t>(std::max(queued, 0L)) + slot.link->staged();
    if (asked_ns_ != now)
        ask(now);
    // What went over it so far in answer to the other side may be lost.
    acknowledge_now_ = true;
}

// Something that this link was given at `sent_ns`, and no other, is there.
void Session::answered(Slot& slot, int64_t sent_ns, int64_t now) {
    slot.witness_ns = std::max(slot.witness_ns, sent_ns);
    slot.heard_ns = now;
    if (slot.silence.standing() != Standing::kUp) {
        slot.silence.answered(sent_ns);
        show(slot);
    }
    // What others carry may have been overtaken by this.
    if (slots_.size() > 1 && (look_at_ns_ <= now || slot.pace.in_flight() == 0))
        host_.dirty(*this);
}

void Session::pong(Slot& slot, int64_t asked_ns) {
    const int64_t now = host_.now_ns();
    if (asked_ns <= 0 || asked_ns > now)
        return;  // nobody asked then
    if (asked_ns >= slot.pinged_ns)
        slot.pinged_ns = 0;
    slot.pace.answered(now - asked_ns, now);
    if (asked_ns == slot.late_ns)
        slot.pace.drained(slot.late_bytes, now - asked_ns, now);
    answered(slot, asked_ns, now);
    host_.dirty(*this);
}

// Asks on every link at once: so silence of one can be told from silence of all, and their latencies compared.
void Session::ask(int64_t now) {
    asked_ns_ = now;
    for (Slot& slot : slots_) {
        if (!slot.link || slot.link->is_broken())
            continue;
        FrameHeader ping = bare(FrameType::kPing);
        ping.offset = static_cast<uint64_t>(now);
        ping.part = slot.is_ordered ? kWanted : kUnwanted;
        slot.link->stage(ping, std::string());
        slot.silence.probed(now);
        if (slot.pinged_ns == 0) {
            slot.pinged_ns = now;
            slot.pinged_end = slot.link->end();
        }
    }
    host_.dirty(*this);
}

// The other side may not have noticed: its cable is in order, or the rail is a switch away.
void Session::tell_lost(const Slot& lost) {
    if (lost.connection == 0)
        return;
    FrameHeader news = bare(FrameType::kLost);
    news.part = static_cast<uint32_t>(lost.rail_here);
    news.offset = lost.connection;
    for (Slot& slot : slots_) {
        if (slot.link && !slot.link->is_broken())
            slot.link->stage(news, std::string());
    }
}

void Session::hear_lost(const FrameHeader& header) {
    for (Slot& slot : slots_) {
        if (slot.link && slot.connection != 0 && slot.connection == header.offset && slot.rail_there == header.part)
            slot.link->cut(ENETDOWN);
    }
    host_.dirty(*this);
}

}  // namespace taskd::rail
