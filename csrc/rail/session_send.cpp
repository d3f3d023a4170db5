// How a session sends: which frame goes on which link, and when what has come is acknowledged.
#include <algorithm>
#include <cerrno>
#include <string>

#include "session.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kTurnBytes = 1 << 20;      // per link, before the lock is offered to others
constexpr size_t kGatherBytes = 256 << 10;  // small frames leave together
constexpr int kRungs = 3;
constexpr int kMostSends = 6;
constexpr int64_t kStealNs = 1 * kMillisecondNs;

}  // namespace

FrameHeader Session::bare(FrameType type) const {
    FrameHeader header{};
    header.type = type;
    header.epoch = epoch_;
    header.received = arrivals_.through();
    header.freed = inbox_.freed();
    return header;
}

// Links are taken in this order: good ones; good ones that were ordered out of use; suspects.
bool Session::is_candidate(const Slot& slot, int rung) const {
    if (!slot.link || slot.link->is_broken())
        return false;
    if (slot.silence.standing() != Standing::kUp)
        return rung == 2;
    return slot.is_ordered ? rung == 0 : rung == 1;
}

bool Session::alone() const {
    return std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.up() && slot.is_ordered; }) <=
           1;
}

// Where `bytes` would arrive first. Null: nowhere now.
Slot* Session::choose(size_t bytes, bool is_large) {
    for (int rung = 0; rung < kRungs; ++rung) {
        Slot* best = nullptr;
        bool any = false;
        int64_t least = INT64_MAX;
        for (Slot& slot : slots_) {
            if (!is_candidate(slot, rung))
                continue;
            any = true;
            if (slot.link->blocked() || slot.budget == 0)
                continue;
            if (is_large && slot.pace.in_flight() >= slot.pace.window() && !alone())
                continue;
            const int64_t delay = slot.pace.delay_ns(bytes);
            if (delay < least) {
                least = delay;
                best = &slot;
            }
        }
        if (any)
            return best;
    }
    return nullptr;
}

void Session::stage(Slot& slot, Numbered& frame) {
    const size_t index = static_cast<size_t>(&slot - slots_.data());
    if (frame.weight == 0)
        frame.weight = frame.header.length + sizeof frame.header;
    const size_t bytes = frame.weight;
    if ((frame.carriers >> index & 1) != 0)
        slot.pace.forgotten(bytes);
    frame.carriers |= uint32_t{1} << index;
    frame.was_busy = slot.pace.busy();
    frame.delivered_then = slot.pace.delivered();
    frame.sent_ns = host_.now_ns();
    ++frame.sends;
    frame.header.received = arrivals_.through();
    frame.header.freed = inbox_.freed();
    slot.pace.sent(bytes);
    slot.link->stage(frame.header, frame.payload(), frame.message.get());
    slot.budget -= std::min(slot.budget, bytes);
    // Whoever waits for a look at silence waits at least this long.
    host_.wake_by(frame.sent_ns + kSilenceFloorNs);
    if (arrivals_.above().empty()) {
        acknowledge_now_ = false;
        acknowledge_by_ns_ = 0;
        unacknowledged_ = 0;
    }
}

// One round: all small frames that find a link, then a piece for each link that takes one.
bool Session::stage_some(bool* more) {
    bool any = false;
    const auto flush = [&](Slot& slot, size_t above) {
        if (slot.link->staged() > above)
            slot.link->write(kTurnBytes);
    };
    while (outbox_.has_small()) {
        Slot* const slot = choose(sizeof(FrameHeader), false);
        if (slot == nullptr)
            break;
        stage(*slot, outbox_.next_small());
        flush(*slot, kGatherBytes);
        any = true;
    }
    while (outbox_.has_large()) {
        Slot* const slot = choose(kShortestPiece, true);
        if (slot == nullptr)
            break;
        stage(*slot, outbox_.next_large(alone() ? kTurnBytes / 2 : slot->pace.piece()));
        flush(*slot, 0);
        any = true;
    }
    if (outbox_.has_small() || outbox_.has_large()) {
        for (const Slot& slot : slots_)
            *more = *more || (slot.up() && slot.budget == 0 && !slot.link->blocked());
    }
    return any;
}

bool Session::pump() {
    if (!failure_.empty())
        return false;
    bool more = false;
    for (Slot& slot : slots_)
        slot.budget = kTurnBytes;
    // What was staged and could not leave goes first.
    for (Slot& slot : slots_) {
        if (slot.link && !slot.link->blocked() && slot.link->staged() > 0)
            slot.link->write(kTurnBytes);
    }
    while (stage_some(&more)) {
    }
    steal();
    if (acknowledge_now_)
        stage_acknowledgement();
    if (is_leaving_)
        say_farewell();
    for (Slot& slot : slots_) {
        if (slot.link && !slot.link->blocked() && slot.link->staged() > 0)
            more = slot.link->write(kTurnBytes) == Link::Progress::kMore || more;
    }
    return more;
}

void Session::stage_acknowledgement() {
    Slot* slot = &slots_[std::min(last_slot_, slots_.size() - 1)];
    if (!slot->up() || slot->link->blocked())
        slot = choose(sizeof(FrameHeader), false);
    if (slot != nullptr)
        stage_acknowledgement(*slot);  // else as soon as a link can take something
}

void Session::stage_acknowledgement(Slot& slot) {
    FrameHeader header = bare(FrameType::kAck);
    std::string ranges;
    for (const Range& range : arrivals_.above()) {
        if (ranges.size() + sizeof range > kLongestControl)
            break;
        ranges.append(reinterpret_cast<const char*>(&range), sizeof range);
    }
    header.length = static_cast<uint32_t>(ranges.size());
    slot.link->stage(header, std::move(ranges));
    acknowledge_now_ = false;
    acknowledge_by_ns_ = 0;
    unacknowledged_ = 0;
}

// At the end of a message, a rail that has nothing to do takes over what a much slower one has not delivered.
void Session::steal() {
    if (slots_.size() < 2 || outbox_.has_large() || alone())
        return;
    for (Slot& idle : slots_) {
        if (!idle.up() || !idle.is_ordered || idle.link->blocked() || idle.pace.in_flight() > 0)
            continue;
        const size_t here = static_cast<size_t>(&idle - slots_.data());
        for (Numbered& frame : outbox_.unacknowledged()) {
            if (frame.is_acknowledged || frame.is_queued || frame.sends != 1 || (frame.carriers >> here & 1) != 0 ||
                frame.payload() == nullptr)
                continue;
            size_t other = 0;
            while (other < slots_.size() && (frame.carriers >> other & 1) == 0)
                ++other;
            if (other == slots_.size())
                continue;
            Slot& slow = slots_[other];
            const int64_t age = host_.now_ns() - frame.sent_ns;
            if (slow.pace.delay_ns(0) - age < 3 * idle.pace.delay_ns(frame.header.length) + kStealNs)
                continue;
            add(slow.record->hedged, 1);
            stage(idle, frame);
            break;
        }
    }
}

}  // namespace taskd::rail
