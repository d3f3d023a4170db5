// How a session ends: in good order, or at once.
//
// In good order, when a process has done all its work: a peer may still be in the very operation that is over here. So
// the last word goes out only when everything that was sent has been acknowledged, with all acknowledgements that are
// due before it, on every link; and the connections stay until the other side has answered. Closed earlier, a
// connection with unread bytes is reset, and a reset destroys what is on its way, the last word included.
//
// Who hears it knows: all that this member sent is here, and it needs nothing any more. What is here is still given to
// operations that ask for it later; only those fail that wait for what can never come (seat.cpp).
//
// At once, when an epoch is aborted: all of its operations are over anyway, and memory must be free on return.
//
// Does not: bound the time of a farewell (the engine does).
#include <algorithm>
#include <cerrno>
#include <string>

#include "rail/session/session.hpp"

namespace taskd::rail {

void Session::leave(const std::string& reason) {
    if (!failure_.empty())
        return;
    is_leaving_ = true;
    own_farewell_ = reason;
    host_.dirty(*this);
}

bool Session::awaits(const Party& party, uint64_t group) const {
    return inbox_.awaits(group, party.sequence(), party) || outbox_.awaits(group, party.sequence(), party);
}

// Behind whatever the link has to write before.
void Session::stage_farewell(Slot& slot, const std::string& reason, uint64_t manner) {
    FrameHeader bye = bare(FrameType::kBye);
    bye.offset = manner;
    bye.length = static_cast<uint32_t>(std::min(reason.size(), kLongestControl));
    slot.link->stage(bye, reason.substr(0, bye.length));
}

// What comes after it on a link belongs to operations that this process has given up.
void Session::say_farewell() {
    if (!outbox_.idle())
        return;
    for (Slot& slot : slots_) {
        if (!slot.link || slot.link->is_broken() || slot.has_said_farewell)
            continue;
        slot.has_said_farewell = true;
        // Of what came with gaps before it, a header alone would say too little.
        stage_acknowledgement(slot);
        stage_farewell(slot, own_farewell_, kInGoodOrder);
    }
}

void Session::hear_farewell(Link& link, const FrameHeader& header, const char* payload) {
    farewell_ = header.length > 0 ? std::string(payload, header.length) : "without a reason";
    peer_has_left_ = header.offset == kInGoodOrder;
    if (peer_has_left_) {
        Slot& slot = slots_[link.slot()];
        // It waits for this. If it does not fit now, the end of the connection says the same.
        stage_farewell(slot, "farewell", kAnswer);
        link.write(kLongestControl * 2);
        for (Slot& other : slots_)
            counters_.close(*other.record, epoch_);  // before its links go: no rail is down because of this
    }
    link.cut(ECONNRESET);
    host_.dirty(*this);
}

void Session::end(const std::string& reason) {
    // Also if a last word cannot be said and throws.
    struct Closing {
        ~Closing() { session.close_links(); }

        Session& session;
    } const closing{*this};

    if (failure_.empty())
        failure_ = reason;
    for (Slot& slot : slots_) {
        // Where a frame is half written, the connection just closes: the other side finds the epoch stale.
        if (slot.link && slot.link->staged() == 0 && !slot.link->is_broken() && !slot.has_said_farewell) {
            stage_farewell(slot, reason, kAtOnce);
            slot.link->write(kLongestControl * 2);
        }
    }
}

void Session::close_links() {
    for (Slot& slot : slots_) {
        slot.dial_at_ns = INT64_MAX;
        if (!slot.link)
            continue;
        host_.unwatch(*slot.link);
        slot.link.reset();
        set_state(*slot.record, RailState::kDown, host_.now_ns());
    }
}

}  // namespace taskd::rail
