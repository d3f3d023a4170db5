// How a session sends: which frame goes on which link, and when what has come is acknowledged.
#include <algorithm>
#include <cerrno>
#include <string>

#include "rail/session/session.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kTurnBytes = 1 << 20;      // per link, before the lock is offered to others
constexpr size_t kGatherBytes = 256 << 10;  // small frames leave together
constexpr int kRungs = 3;
constexpr size_t kSmallTurnBytes = 64 << 10;
constexpr int64_t kAlikeNs = 20'000;
constexpr double kMuchSlower = 8;
constexpr int64_t kAskEveryNs = 100 * kMillisecondNs;  // while there is traffic
constexpr int64_t kLateNs = 2 * kMillisecondNs;

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
    return slot.in_use() ? rung == 0 : rung == 1;
}

// There is nothing to share.
bool Session::alone() const {
    return slots_.size() == 1 || connected() <= 1;
}

bool Session::has_room(const Slot& slot, bool is_large, const Yardstick& by) const {
    if (slot.link->blocked() || slot.budget == 0)
        return false;
    if (!is_large || alone() || slot.pace.has_room(by))
        return true;
    // What has left the rail waits for the other process: that says nothing of the rail, and must not starve it. One
    // that is known to be slow gets no more than it was seen to deliver.
    if (slot.pace.rate(by) * kMuchSlower < by.fastest)
        return false;
    const long queued = sockets_.queued(slot.link->fd());
    return slot.pace.in_flight() < kWidestWindow && queued >= 0 &&
           static_cast<size_t>(queued) + slot.link->staged() < slot.pace.window() / 2;
}

Yardstick Session::yardstick() const {
    Yardstick by{host_.now_ns(), 0, 0};
    for (const Slot& slot : slots_) {
        if (!slot.up())
            continue;
        by.fastest = std::max(by.fastest, slot.pace.rate());
        const int64_t trip = slot.pace.round_trip_ns();
        if (trip > 0 && (by.quickest_ns == 0 || trip < by.quickest_ns))
            by.quickest_ns = trip;
    }
    return by;
}

// A rail that carries again gets the next frame, whatever is known of it: bytes are the proof that the manager waits
// for, on every pair of ranks, and where there is little to send the others would do. Null: there is none.
Slot* Session::unproved(bool is_large, const Yardstick& by) {
    for (Slot& slot : slots_) {
        if (is_candidate(slot, 0) && !is_proved(*slot.record) && slot.pace.in_flight() < kShortestPiece &&
            has_room(slot, is_large, by))
            return &slot;
    }
    return nullptr;
}

// Where `bytes` would arrive first. Null: nowhere now.
Slot* Session::choose(size_t bytes, bool is_large) {
    const Yardstick by = yardstick();
    if (bytes > sizeof(FrameHeader)) {
        if (Slot* const first = unproved(is_large, by))
            return first;
    }
    for (int rung = 0; rung < kRungs; ++rung) {
        Slot* best = nullptr;
        bool any = false;
        int64_t least = INT64_MAX;
        for (Slot& slot : slots_) {
            if (!is_candidate(slot, rung))
                continue;
            any = true;
            if (!has_room(slot, is_large, by))
                continue;
            const int64_t delay = slot.pace.delay_ns(bytes, by);
            if (delay < least) {
                least = delay;
                best = &slot;
            }
        }
        if (any)
            return is_large || best == nullptr ? best : in_turn(best, bytes, rung, by);
    }
    return nullptr;
}

// Small frames take the link that is best now or one about as good, each for a while: so none that works is left
// without a sign of it.
Slot* Session::in_turn(Slot* best, size_t bytes, int rung, const Yardstick& by) {
    if (slots_.size() == 1)
        return best;
    const int64_t least = best->pace.delay_ns(bytes, by);
    for (size_t step = turn_bytes_ < kSmallTurnBytes ? 0 : 1; step <= slots_.size(); ++step) {
        const size_t index = (turn_slot_ + step) % slots_.size();
        Slot& slot = slots_[index];
        if (!is_candidate(slot, rung) || !has_room(slot, false, by) ||
            slot.pace.delay_ns(bytes, by) > least + least / 2 + kAlikeNs)
            continue;
        turn_bytes_ = (step == 0 ? turn_bytes_ : 0) + bytes;
        turn_slot_ = index;
        return &slot;
    }
    return best;
}

void Session::stage(Slot& slot, Numbered& frame) {
    const size_t index = static_cast<size_t>(&slot - slots_.data());
    if (frame.weight == 0)
        frame.weight = frame.header.length + sizeof frame.header;
    const size_t bytes = frame.weight;
    if ((frame.carriers >> index & 1) != 0)
        slot.pace.forgotten(bytes);
    frame.carriers |= uint32_t{1} << index;
    const Yardstick by = yardstick();
    const int64_t delay = slot.pace.delay_ns(bytes, by);
    frame.expected_ns = by.now_ns + delay;
    frame.late_ns = by.now_ns + 2 * delay + kLateNs;
    ++frame.sends;
    frame.header.received = arrivals_.through();
    frame.header.freed = inbox_.freed();
    frame.mark = slot.pace.sent(bytes, by.now_ns);
    slot.link->stage(frame.header, frame.payload(), frame.message.get());
    frame.end = slot.link->end();
    slot.budget -= std::min(slot.budget, bytes);
    // Whoever waits for a look at silence waits at least this long; and to be late takes another link.
    if (slots_.size() > 1) {
        look_at_ns_ = std::min(look_at_ns_, frame.late_ns);
        host_.wake_by(std::min(frame.late_ns, by.now_ns + kSilenceFloorNs));
    } else {
        host_.wake_by(by.now_ns + kLossLookNs);
    }
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
        Slot* const slot = choose(outbox_.small_bytes(), false);
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
    // What a lost link carried goes before anything new, and so does the news of it.
    reap();
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
    bool any = false;
    while (stage_some(&more))
        any = true;
    while (overtake() && stage_some(&more)) {
    }
    if (any && connected() > 1 && host_.now_ns() - asked_ns_ >= kAskEveryNs)
        ask(host_.now_ns());
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
    // Not behind what is on its way, if another link has less of it.
    if (!slot->up() || slot->link->blocked() || slot->pace.in_flight() > 0)
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

}  // namespace taskd::rail
