#include "rail/session/sender.hpp"

#include <algorithm>

namespace taskd::rail {
namespace {

constexpr size_t kTurnBytes = 1 << 20;                 // per path, before the lock is offered to others
constexpr size_t kGatherBytes = 256 << 10;             // small frames are sent together
constexpr int64_t kAskEveryNs = 100 * kMillisecondNs;  // while there is traffic

bool has_staged(const Path& path) {
    return path.link() && !path.link()->blocked() && path.link()->staged() > 0;
}

void write_above(const Path& path, size_t staged) {
    if (path.link()->staged() > staged)
        path.link()->write(kTurnBytes);
}

}  // namespace

Sender::Sender(BoundHost host, Paths& paths, Outbox& outbox, Acknowledger& acknowledger, Prober& prober,
               const Lifecycle& life)
    : host_(host),
      paths_(paths),
      outbox_(outbox),
      acknowledger_(acknowledger),
      prober_(prober),
      life_(life),
      scheduler_([&paths](size_t path) { return paths[path].queued(); }),
      overtaking_(host, paths, outbox, acknowledger, prober) {}

// ---- one turn

void Sender::begin_turn() {
    for (Path& path : paths_)
        path.budget = kTurnBytes;
    for (const Path& path : paths_) {
        if (has_staged(path))
            path.link()->write(kTurnBytes);
    }
}

bool Sender::send() {
    bool more = false;
    bool any = false;
    while (send_some(&more))
        any = true;
    while (overtaking_.look() && send_some(&more)) {
    }
    if (any && paths_.can_compare() && host_.now_ns() - prober_.asked_ns() >= kAskEveryNs)
        prober_.ask(host_.now_ns());
    return more;
}

// One round: all small frames that find a path, then a piece for each path that takes one.
bool Sender::send_some(bool* more) {
    const bool has_sent_small = send_small();
    const bool has_sent_large = send_large();
    if (outbox_.has_small() || outbox_.has_large()) {
        for (const Path& path : paths_)
            *more = *more || (path.is_up() && path.budget == 0 && !path.link()->blocked());
    }
    return has_sent_small || has_sent_large;
}

bool Sender::send_small() {
    bool any = false;
    while (outbox_.has_small()) {
        Path* const path = choose(outbox_.small_bytes(), false);
        if (path == nullptr)
            break;
        stage(*path, outbox_.next_small());
        write_above(*path, kGatherBytes);
        any = true;
    }
    return any;
}

bool Sender::send_large() {
    bool any = false;
    while (outbox_.has_large()) {
        Path* const path = choose(kShortestPiece, true);
        if (path == nullptr)
            break;
        stage(*path, outbox_.next_large(paths_.can_compare() ? path->pace().piece() : kTurnBytes / 2));
        write_above(*path, 0);
        any = true;
    }
    return any;
}

// The path on which `bytes` would arrive first. Null: no path can take them now.
Path* Sender::choose(size_t bytes, bool is_large) {
    const Yardstick by = paths_.yardstick(host_.now_ns());
    const auto chosen = scheduler_.choose(paths_.views(), bytes, is_large, by);
    return chosen ? &paths_[*chosen] : nullptr;
}

void Sender::stage(Path& path, Numbered& frame) {
    const Yardstick by = paths_.yardstick(host_.now_ns());
    acknowledger_.stamp(frame.header);
    path.carry(frame, by);
    // Silence is checked after this time at the earliest; and a frame can be late only if there is another path.
    if (paths_.size() > 1) {
        overtaking_.expect(frame.late_ns);
        host_.wake_by(std::min(frame.late_ns, by.now_ns + kSilenceFloorNs));
    } else {
        host_.wake_by(by.now_ns + kLossLookNs);
    }
    acknowledger_.stamped();
}

void Sender::acknowledge() {
    if (!acknowledger_.is_due())
        return;
    Path* path = &paths_[std::min(acknowledger_.last_path(), paths_.size() - 1)];
    // Do not queue it behind what is in flight, if another path has less in flight.
    if (!path->is_up() || path->link()->blocked() || path->pace().in_flight() > 0)
        path = choose(sizeof(FrameHeader), false);
    if (path != nullptr)
        acknowledger_.say(*path->link());  // otherwise as soon as a path can take it
}

bool Sender::flush() {
    bool more = false;
    for (const Path& path : paths_) {
        if (has_staged(path))
            more = path.link()->write(kTurnBytes) == Link::Progress::kMore || more;
    }
    return more;
}

// ---- what the other side has

void Sender::acknowledged(const FrameHeader& header, const Range* ranges, size_t count) {
    outbox_.freed(header.freed);
    const auto done = [this](Numbered& frame) { frame_acknowledged(frame); };
    const auto complete = [this](Outgoing& message) {
        if (message.party != nullptr)
            host_.post({Event::What::kSent, message.party, message.member, message.key.part});
        host_.dirty();
    };
    outbox_.acknowledge(0, header.received, done, complete);
    for (size_t index = 0; index < count; ++index) {
        if (ranges[index].first <= ranges[index].last)
            outbox_.acknowledge(ranges[index].first, ranges[index].last, done, complete);
    }
    if (life_.stage() == Life::kLeaving)
        host_.dirty();  // this may have been the last one
}

void Sender::send_again(const Path& path) {
    for (Numbered& frame : outbox_.unacknowledged()) {
        if (!path.carries(frame))
            continue;
        frame.carriers &= ~(uint32_t{1} << path.rails.index);
        if (frame.is_acknowledged)
            continue;
        add(path.record.retransmitted, 1);
        outbox_.send_again(frame);
    }
}

int64_t Sender::next_ns(int64_t now) const {
    const int64_t due_ns = overtaking_.due_ns();
    if (!paths_.can_compare() || due_ns == INT64_MAX)
        return INT64_MAX;
    return due_ns > now ? due_ns : now + kLookAgainNs;
}

void Sender::frame_acknowledged(Numbered& frame) {
    const int64_t now = host_.now_ns();
    for (Path& path : paths_) {
        if (!path.carries(frame) || !path.link() || !path.acknowledged(frame, now))
            continue;
        prober_.heard(path, frame.mark.sent_ns, now);
        // What other paths carry may have been overtaken by this frame.
        if (paths_.size() > 1 && (overtaking_.due_ns() <= now || path.pace().in_flight() == 0))
            host_.dirty();
    }
    if (outbox_.has_large() || outbox_.has_small())
        host_.dirty();
}

}  // namespace taskd::rail
