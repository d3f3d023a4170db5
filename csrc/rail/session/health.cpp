// How a session notices that a rail fails, and what it does: hedge, probe, take down, dial again, hold, give up. That
// all of them fail at once is seen in loss.cpp.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "rail/session/session.hpp"

namespace taskd::rail {
namespace {

constexpr int64_t kFirstPauseNs = 10 * kMillisecondNs;
constexpr int64_t kLongestPauseNs = 500 * kMillisecondNs;  // a rail that is back is used before a second has passed
constexpr int64_t kLookAgainNs = 5 * kMillisecondNs;       // while silence lasts
constexpr int64_t kHeldAtLeastNs = kMillisecondNs;

int64_t nanoseconds(std::chrono::milliseconds duration) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

// It is silent, and another link to the same process is not: else it is the process that says nothing.
bool Session::is_outdone(const Slot& slot) const {
    return slot.silence.standing() == Standing::kSuspect &&
           std::any_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
               return &other != &slot && other.link && other.witness_ns > slot.silence.since_ns();
           });
}

// The counters tell others how this rail stands.
void Session::show(Slot& slot) {
    RailState state = RailState::kDown;
    if (slot.link)
        state = is_outdone(slot) ? RailState::kSuspect : RailState::kUp;
    else if (slot.is_dialling)
        state = RailState::kProbing;
    set_state(*slot.record, state, host_.now_ns());
}

void Session::attach(size_t index, int fd) {
    Slot& slot = slots_[index];
    auto link = std::make_unique<Link>(sockets_, fd, epoch_, index, *slot.record);  // first: it owns the descriptor
    if (slot.link)
        lose(slot, ECONNRESET, nullptr);
    slot.is_dialling = false;
    slot.dial_at_ns = INT64_MAX;
    slot.pause_ns = 0;
    slot.refusals = 0;
    slot.pace = Pace();
    slot.silence = Silence();
    slot.read_then = 0;
    slot.late_ns = slot.pinged_ns = 0;
    slot.heard_ns = host_.now_ns();
    slot.connection = sockets_.connection_of(fd, dials_);
    slot.has_said_farewell = false;
    slot.is_wanted = true;  // until the other end says otherwise, as soon as there is another link
    slot.link = std::move(link);
    was_connected_ = true;
    lost_ns_ = silent_ns_ = 0;
    quiet_looks_ = 0;
    // Each side may have been told less than the other knows.
    acknowledge_now_ = true;
    show(slot);
    host_.watch(*this, *slot.link);
    if (connected() > 1) {
        // From now on there is another link to compare an older one with.
        ask(host_.now_ns());
        host_.wake_by(host_.now_ns() + kSilenceFloorNs);
    }
    host_.dirty(*this);
    host_.changed(*this);
}

bool Session::reap() {
    bool any = false;
    for (Slot& slot : slots_) {
        if (!slot.link || !slot.link->is_broken())
            continue;
        any = true;
        lose(slot, slot.link->error(), slot.link->fault());
    }
    return any;
}

void Session::lose(Slot& slot, int error, const char* fault) {
    const size_t index = static_cast<size_t>(&slot - slots_.data());
    const int64_t now = host_.now_ns();
    host_.unwatch(*slot.link);
    slot.link.reset();
    slot.pace = Pace();
    slot.silence = Silence();
    slot.last_trouble = fault != nullptr ? fault : std::strerror(error);
    if (!peer_has_left_)
        set_error(*slot.record, error, now);
    for (Numbered& frame : outbox_.unacknowledged()) {
        if ((frame.carriers >> index & 1) == 0)
            continue;
        frame.carriers &= ~(uint32_t{1} << index);
        if (frame.is_acknowledged)
            continue;
        add(slot.record->retransmitted, 1);
        outbox_.send_again(frame);
    }
    // The last that the other side was told over it may be lost, and it may wait for just that.
    acknowledge_now_ = true;
    if (!peer_has_left_)
        show(slot);
    retry_later(slot, now);
    host_.dirty(*this);
    if (!failure_.empty())
        return;
    if (farewell_.empty())
        tell_lost(slot);
    slot.connection = 0;
    if (!farewell_.empty()) {
        fail("it has left: " + farewell_);
    } else if (connected() == 0 && lost_ns_ == 0) {
        lost_ns_ = silent_ns_ != 0 ? silent_ns_ : now;
        check_hold(now);
        host_.wake_by(now + nanoseconds(retry_.hold) + retry_.count * nanoseconds(retry_.interval) + kHeldAtLeastNs);
    }
}

void Session::retry_later(Slot& slot, int64_t now) {
    if (!dials_ || !failure_.empty())
        return;
    slot.dial_at_ns = slot.is_usable ? now + slot.pause_ns : INT64_MAX;
    slot.pause_ns =
        std::min({std::max(2 * slot.pause_ns, kFirstPauseNs), nanoseconds(retry_.interval), kLongestPauseNs});
    if (slot.is_usable)
        host_.wake_by(slot.dial_at_ns);
}

void Session::dial_failed(size_t index, int error, const std::string& trouble) {
    Slot& slot = slots_[index];
    slot.is_dialling = false;
    slot.last_trouble = trouble;
    slot.refusals = error == ECONNREFUSED ? slot.refusals + 1 : 0;
    set_error(*slot.record, error, host_.now_ns());
    show(slot);
    if (error == ESTALE) {
        if (was_connected_)
            farewell_ = "it has ended the epoch";  // and is not heard any more, for its own connection is gone
        fail("it has ended epoch " + std::to_string(epoch_));
        return;
    }
    retry_later(slot, host_.now_ns());
    check_hold(host_.now_ns());
}

void Session::set_interface(size_t rail_here, bool usable, const std::string& reason) {
    for (Slot& slot : slots_) {
        if (slot.rail_here != rail_here)
            continue;
        slot.is_usable = usable;
        slot.last_trouble = reason;
        if (!usable && slot.link) {
            slot.link->cut(ENETDOWN);
            host_.dirty(*this);
        } else if (usable && dials_ && !slot.link && !slot.is_dialling) {
            slot.pause_ns = 0;
            retry_later(slot, host_.now_ns());
        }
    }
}

void Session::set_order(size_t rail_here, bool in_use) {
    for (Slot& slot : slots_) {
        if (slot.rail_here != rail_here || slot.is_ordered == in_use)
            continue;
        slot.is_ordered = in_use;
        prove_anew(*slot.record);
    }
    ask(host_.now_ns());  // which tells the other end, too
}

Numbered* Session::oldest_on(size_t index) {
    for (Numbered& frame : outbox_.unacknowledged()) {
        if (!frame.is_acknowledged && !frame.is_queued && (frame.carriers >> index & 1) != 0)
            return &frame;
    }
    return nullptr;
}

void Session::look_for_silence(Slot& slot, int64_t now) {
    const size_t index = static_cast<size_t>(&slot - slots_.data());
    const Numbered* const oldest = oldest_on(index);
    const int64_t patience = slot.pace.patience_ns();
    int64_t witness = 0;
    for (const Slot& other : slots_) {
        if (&other != &slot && other.link)
            witness = std::max(witness, other.witness_ns);
    }
    const auto is_late = [&](int64_t since_ns, uint64_t end) {
        const bool is_deaf = now - since_ns >= kDeafNs && witness > since_ns;
        return now - since_ns >= patience && (is_deaf || holds(slot, end));
    };
    const bool is_unanswered = slot.pinged_ns != 0 && is_late(slot.pinged_ns, slot.pinged_end);
    if (is_unanswered || (oldest != nullptr && is_late(oldest->mark.sent_ns, oldest->end))) {
        slot.silence.suspect(now);
        acknowledge_now_ = true;
        const bool has_other =
            std::any_of(slots_.begin(), slots_.end(), [&](const Slot& other) { return &other != &slot && other.up(); });
        for (Numbered& frame : outbox_.unacknowledged()) {
            const bool is_old = (frame.carriers >> index & 1) != 0 && is_late(frame.mark.sent_ns, frame.end);
            if (!has_other || frame.is_acknowledged || frame.is_queued || !is_old)
                continue;
            add(slot.record->hedged, 1);
            outbox_.send_again(frame);
        }
        host_.dirty(*this);
    }
    if (slot.silence.standing() != Standing::kSuspect)
        return;
    show(slot);
    const uint64_t brought = this->brought(slot);
    const bool is_empty = brought == slot.link->bytes_written();
    const bool is_moving = brought != slot.brought_then;
    // What comes says nothing of this direction, as long as there is something in it that could move.
    if (is_empty ? slot.link->bytes_read() != slot.read_then : is_moving)
        slot.silence.progressed(now);
    else if (is_moving || !holds(slot, slot.link->end()))
        slot.silence.carried(now);
    slot.read_then = slot.link->bytes_read();
    slot.brought_then = brought;
    if (slot.silence.judge(now, witness))
        slot.link->cut(ETIMEDOUT);
    host_.dirty(*this);
}

void Session::probe(int64_t now) {
    if (std::any_of(slots_.begin(), slots_.end(),
                    [&](const Slot& slot) { return slot.link && slot.silence.wants_probe(now); }))
        ask(now);
}

void Session::on_time(int64_t now) {
    if (!failure_.empty())
        return;
    if (acknowledge_by_ns_ != 0 && acknowledge_by_ns_ <= now) {
        acknowledge_now_ = true;
        acknowledge_by_ns_ = 0;
        host_.dirty(*this);
    }
    if (connected() > 1) {
        for (Slot& slot : slots_) {
            if (slot.link && !slot.link->is_broken())
                look_for_silence(slot, now);
        }
        probe(now);
        if (look_at_ns_ <= now)
            host_.dirty(*this);
    } else {
        for (Slot& slot : slots_) {
            if (slot.link && slot.silence.standing() != Standing::kUp) {
                slot.silence.alone();
                show(slot);
                host_.dirty(*this);
            }
        }
    }
    look_for_loss(now);
    for (size_t index = 0; index < slots_.size(); ++index) {
        Slot& slot = slots_[index];
        if (slot.dial_at_ns > now || slot.link || slot.is_dialling)
            continue;
        slot.dial_at_ns = INT64_MAX;
        slot.is_dialling = true;
        show(slot);
        host_.dial(*this, index);
    }
    check_hold(now);
}

int64_t Session::next_ns(int64_t now) {
    int64_t next = INT64_MAX;
    if (!failure_.empty())
        return next;
    if (acknowledge_by_ns_ != 0)
        next = acknowledge_by_ns_;
    const bool compares = connected() > 1;
    for (size_t index = 0; index < slots_.size(); ++index) {
        const Slot& slot = slots_[index];
        if (!slot.link && !slot.is_dialling)
            next = std::min(next, slot.dial_at_ns);
        if (!slot.link || !compares)
            continue;
        next = std::min(next, slot.silence.next_ns());
        if (slot.pinged_ns != 0)
            next = std::min(next, std::max(slot.pinged_ns + slot.pace.patience_ns(), now + kLookAgainNs));
        if (const Numbered* oldest = oldest_on(index))
            next = std::min(next, std::max(oldest->mark.sent_ns + slot.pace.patience_ns(), now + kLookAgainNs));
    }
    if (compares && look_at_ns_ != INT64_MAX)
        next = std::min(next, look_at_ns_ > now ? look_at_ns_ : now + kLookAgainNs);
    if (is_waiting())
        next = std::min(next, std::max(look_for_loss_ns_, now + kHeldAtLeastNs));
    if (const int64_t since = std::max(lost_ns_, silent_ns_); since != 0)
        next = std::min(
            next, since + nanoseconds(retry_.hold) + retry_.count * nanoseconds(retry_.interval) + kHeldAtLeastNs);
    return next;
}

std::string Session::what_was_tried() const {
    const std::string nothing = was_connected_ ? "closed" : dials_ ? "no answer" : "it has not dialled";
    std::string text;
    for (const Slot& slot : slots_) {
        text += text.empty() ? "" : ", ";
        text += slot.name + " (" + peer_.rails[slot.rail_there].address + ": " +
                (slot.last_trouble.empty() ? nothing : slot.last_trouble) + ")";
    }
    return text;
}

void Session::check_hold(int64_t now) {
    const int64_t since = lost_ns_ != 0 ? lost_ns_ : silent_ns_;
    if (since == 0 || !was_connected_ || !failure_.empty())
        return;
    const int64_t rounds = retry_.count * nanoseconds(retry_.interval);
    if (!retry_.enabled) {
        fail("all rails to it are lost and retry is disabled; rails: " + what_was_tried());
        return;
    }
    const bool refused = dials_ && std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
                             return slot.refusals >= (is_leaving_ ? 1 : std::max(retry_.count, 1));
                         });
    const int64_t lost_for = now - since;
    if (lost_for > nanoseconds(retry_.hold) + rounds || (refused && (is_leaving_ || lost_for > rounds)))
        fail("no rail came back within " + std::to_string(lost_for / kMillisecondNs) +
             " ms; tried: " + what_was_tried());
}

void Session::fail(const std::string& text) {
    failure_ = text;
    for (Slot& slot : slots_) {
        if (slot.link)
            slot.link->cut(ECONNABORTED);
    }
    host_.dirty(*this);
    host_.changed(*this);
}

}  // namespace taskd::rail
