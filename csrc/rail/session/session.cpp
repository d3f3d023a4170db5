// What a session receives and what groups ask of it; its other halves are send.cpp and health.cpp.
#include "rail/session/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace taskd::rail {
namespace {

constexpr size_t kAtOnceBytes = 16 << 10;  // pieces of this size are acknowledged at once
constexpr int kAtOnceFrames = 32;
constexpr int64_t kAcknowledgeNs = 3 * kMillisecondNs;

}  // namespace

Session::Session(SessionHost& host, SocketLayer& sockets, Counters& counters, const Retry& retry, int64_t epoch,
                 const Endpoint& me, const Endpoint& peer, SessionNames names)
    : host_(host),
      sockets_(sockets),
      counters_(counters),
      retry_(retry),
      epoch_(epoch),
      me_(me),
      peer_(peer),
      names_(std::move(names)),
      dials_(me.process < peer.process),
      outbox_(epoch) {
    const int64_t now = host.now_ns();
    for (const auto& [first, second] : dials_ ? pair_rails(me, peer) : pair_rails(peer, me)) {
        Slot slot;
        slot.rail_here = dials_ ? first : second;
        slot.rail_there = dials_ ? second : first;
        slot.name = me.rails[slot.rail_here].name;
        slot.record =
            &counters.open(slot.name, names_.peer_rank, peer.node, epoch, now, me.rails[slot.rail_here].is_expected);
        slot.dial_at_ns = dials_ ? now : INT64_MAX;
        slots_.push_back(std::move(slot));
    }
    if (dials_)
        host.wake_by(now);
}

Session::~Session() {
    for (Slot& slot : slots_) {
        if (slot.link)
            host_.unwatch(*slot.link);
        slot.link.reset();
        if (!peer_has_left_)
            counters_.close(*slot.record, epoch_);
    }
}

size_t Session::connected() const {
    return static_cast<size_t>(
        std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.link != nullptr; }));
}

// ---- for groups

void Session::send(Party& party, int member, const MessageKey& key, const void* data, size_t bytes, bool announce) {
    const Form* differs = nullptr;
    const Form* const other = stranger(party, key);
    if (other != nullptr)
        host_.post({Event::What::kDiffers, &party, member, key.part, *other});
    if (outbox_.add(key, party, member, data, bytes, announce, &differs))
        host_.post({Event::What::kSent, &party, member, key.part});
    if (differs != nullptr) {
        host_.post({Event::What::kDiffers, &party, member, key.part, *differs});
        outbox_.add_control(FrameType::kDiffers, key, party.form(), bytes);  // who gave the credit waits
    }
    host_.dirty(*this);
}

void Session::receive(Party& party, int member, const MessageKey& key, void* data, size_t bytes) {
    if (const Form* other = stranger(party, key))
        host_.post({Event::What::kDiffers, &party, member, key.part, *other});
    const Posting posting = inbox_.post(key, party, member, data, bytes);
    host_.wake_by(host_.now_ns() + kLossLookNs);
    if (posting.differs) {
        host_.post({Event::What::kDiffers, &party, member, key.part, posting.theirs});
        outbox_.add_control(FrameType::kDiffers, key, party.form(), bytes);
        host_.dirty(*this);
    }
    if (posting.is_complete)
        host_.post({Event::What::kArrived, &party, member, key.part});
    if (posting.wants_credit && failure_.empty()) {
        outbox_.add_control(FrameType::kCredit, key, party.form(), bytes);
        host_.dirty(*this);
    }
}

void Session::watch(Party& party, int member, const MessageKey& key) {
    if (inbox_.watch(key, party, member))
        host_.post({Event::What::kOffered, &party, member, key.part});
}

void Session::release(const MessageKey& key) {
    const auto message = outbox_.take_back(key);
    if (!message)
        return;
    for (Slot& slot : slots_) {
        if (slot.link)
            slot.link->let_go(message.get());
    }
    host_.dirty(*this);
}

void Session::describe(const MessageKey& key, const Form& form) {
    outbox_.add_control(FrameType::kDescribe, key, form, 0);
    host_.dirty(*this);
}

void Session::forget(Party& party, uint64_t group) {
    for (const auto& message : outbox_.take_back_all(group, party.sequence(), party)) {
        for (Slot& slot : slots_) {
            if (slot.link)
                slot.link->let_go(message.get());
        }
    }
    inbox_.forget(group, party.sequence(), party, [&](const MessageKey& key) {
        for (Slot& slot : slots_) {
            const uint64_t number = slot.link ? slot.link->incoming() : 0;
            const MessageKey coming = number == 0 ? MessageKey{} : key_of(slot.link->incoming_header());
            // Its frame is acknowledged when it ends, for nobody needs it again.
            if (number != 0 && !(coming < key) && !(key < coming))
                slot.link->redirect(true);
        }
    });
}

// ---- what comes

char* Session::data_begins(Link& link, const FrameHeader& header) {
    Slot& mine = slots_[link.slot()];
    last_slot_ = link.slot();
    if (arrivals_.has(header.number)) {
        add(mine.record->duplicates, 1);
        link.redirect(false);
        return nullptr;
    }
    // A copy of what another link is bringing: that one's rest must not be written once this one writes.
    for (Slot& slot : slots_) {
        if (slot.link && slot.link.get() != &link && slot.link->incoming() == header.number) {
            add(mine.record->duplicates, 1);
            slot.link->redirect(false);
        }
    }
    compare(header);
    compare_message(header);
    const char* fault = nullptr;
    Inbound* const inbound = inbox_.begin(header, &fault);
    if (fault != nullptr)
        link.cut(EPROTO, fault);
    return inbound == nullptr ? nullptr : Inbox::place_of(*inbound, header);
}

void Session::data_ended(Link& link, const FrameHeader& header, bool counts) {
    acknowledged(header, nullptr, 0);
    if (counts && arrivals_.add(header.number)) {
        arrived(header, link);
    } else if (!counts && (header.flags & kHasMark) != 0 && !arrivals_.has(header.number) && !link.was_redirected()) {
        // Padding of a message that was taken back: its number has come, its bytes never will.
        arrivals_.add(header.number);
    }
    if (header.length >= kAtOnceBytes || ++unacknowledged_ >= kAtOnceFrames || !counts)
        acknowledge_now_ = true;
    if (acknowledge_now_) {
        host_.dirty(*this);
    } else if (acknowledge_by_ns_ == 0) {
        acknowledge_by_ns_ = host_.now_ns() + kAcknowledgeNs;
        host_.wake_by(acknowledge_by_ns_);
    }
}

void Session::arrived(const FrameHeader& header, Link&) {
    Party* party = nullptr;
    int member = 0;
    const Arrival arrival = inbox_.finish(header, &party, &member);
    if (arrival == Arrival::kArrived)
        host_.post({Event::What::kArrived, party, member, header.part});
    else if (arrival == Arrival::kOffered)
        host_.post({Event::What::kOffered, party, member, header.part});
}

void Session::control(Link& link, const FrameHeader& header, const char* payload) {
    Slot& slot = slots_[link.slot()];
    last_slot_ = link.slot();
    if (header.type == FrameType::kAck) {
        Range ranges[kRangesPerAck];
        std::memcpy(ranges, payload, header.length);
        acknowledged(header, ranges, header.length / sizeof(Range));
        return;
    }
    acknowledged(header, nullptr, 0);
    if (header.type == FrameType::kPing) {
        slot.is_wanted = header.part != kUnwanted;
        // Whoever asks may have missed what went over a link that is silent.
        stage_acknowledgement(slot);
        FrameHeader pong = bare(FrameType::kPong);
        pong.offset = header.offset;
        link.stage(pong, std::string());
        host_.dirty(*this);
    } else if (header.type == FrameType::kPong) {
        pong(slot, static_cast<int64_t>(header.offset));
    } else if (header.type == FrameType::kLost) {
        hear_lost(header);
    } else if (header.type == FrameType::kBye) {
        hear_farewell(link, header, payload);
    } else if (arrivals_.add(header.number)) {
        handle(link, header);
        if (++unacknowledged_ >= kAtOnceFrames)
            acknowledge_now_ = true;
        if (acknowledge_by_ns_ == 0) {
            acknowledge_by_ns_ = host_.now_ns() + kAcknowledgeNs;
            host_.wake_by(acknowledge_by_ns_);
        }
    } else {
        add(slot.record->duplicates, 1);
        acknowledge_now_ = true;
        host_.dirty(*this);
    }
}

// A numbered frame without a payload, for the first time.
void Session::handle(Link& link, const FrameHeader& header) {
    const MessageKey key = key_of(header);
    if (header.type == FrameType::kCredit) {
        compare(header);
        const Outgoing* const message = outbox_.waiting(key);
        if (message != nullptr && message->party != nullptr && !(message->form == header.form))
            host_.post({Event::What::kDiffers, message->party, message->member, header.part, header.form});
        outbox_.credit(key, header.form);
        host_.dirty(*this);
    } else if (header.type == FrameType::kOffer) {
        compare(header);
        compare_message(header);
        const Inbound* const found = inbox_.offer(header);
        if (found == nullptr) {
            link.cut(EPROTO, "more messages are offered than anybody could want");
            return;
        }
        const Inbound& inbound = *found;
        // A large one that was asked for has its credit already, unless its sender dropped that.
        const bool wants_credit = header.bytes <= kEagerBytes || header.offset == kAsksAgain;
        if (inbound.is_posted && wants_credit && inbound.bytes == header.bytes) {
            outbox_.add_control(FrameType::kCredit, key, inbound.party->form(), inbound.bytes);
            host_.dirty(*this);
        } else if (inbound.is_watched) {
            host_.post({Event::What::kOffered, inbound.party, inbound.member, header.part});
        }
    } else if (header.type == FrameType::kDescribe || header.type == FrameType::kDiffers) {
        compare(header);
        const Outgoing* const message = outbox_.waiting(key);
        if (header.type == FrameType::kDiffers && message != nullptr && message->party != nullptr)
            host_.post({Event::What::kDiffers, message->party, message->member, header.part, header.form});
        if (header.form.kind == static_cast<uint8_t>(Kind::kPointToPoint)) {
            if (header.type == FrameType::kDiffers)
                compare_message(header);
            return;
        }
        const auto port = rosters_.find(header.group);
        const Form* const mine = port == rosters_.end() ? nullptr : port->second.roster->form_of(header.sequence);
        if (header.type == FrameType::kDescribe && mine != nullptr && !(*mine == header.form)) {
            outbox_.add_control(FrameType::kDiffers, key, *mine, 0);
            host_.dirty(*this);
        }
    }
}

// Another operation's message under this one's number. Messages between two have a number for each direction, so there
// only the same message can be compared.
const Form* Session::stranger(const Party& party, const MessageKey& key) const {
    if (party.form().kind == static_cast<uint8_t>(Kind::kPointToPoint))
        return nullptr;
    return inbox_.stranger(key.group, key.sequence, party.form());
}

// Two ranks in different operations under one sequence never wait for each other in vain.
void Session::compare(const FrameHeader& header) {
    if (header.form.kind == static_cast<uint8_t>(Kind::kPointToPoint))
        return;
    const auto port = rosters_.find(header.group);
    if (port == rosters_.end())
        return;
    Party* const mine = port->second.roster->find(header.sequence);
    if (mine != nullptr && !(mine->form() == header.form))
        host_.post({Event::What::kDiffers, mine, port->second.member, header.part, header.form});
}

// A message that comes, and the memory that was named for it.
void Session::compare_message(const FrameHeader& header) {
    const Inbound* const inbound = inbox_.posted(key_of(header));
    if (inbound == nullptr || (inbound->bytes == header.bytes && inbound->party->form() == header.form))
        return;
    host_.post({Event::What::kDiffers, inbound->party, inbound->member, header.part, header.form});
    // A sender of much waits for credit that never comes.
    outbox_.add_control(FrameType::kDiffers, key_of(header), inbound->party->form(), 0);
    host_.dirty(*this);
}

void Session::acknowledged(const FrameHeader& header, const Range* ranges, size_t count) {
    outbox_.freed(header.freed);
    const auto done = [this](Numbered& frame) { frame_acknowledged(frame); };
    const auto complete = [this](Outgoing& message) {
        if (message.party != nullptr)
            host_.post({Event::What::kSent, message.party, message.member, message.key.part});
        host_.dirty(*this);
    };
    outbox_.acknowledge(0, header.received, done, complete);
    for (size_t index = 0; index < count; ++index) {
        if (ranges[index].first <= ranges[index].last)
            outbox_.acknowledge(ranges[index].first, ranges[index].last, done, complete);
    }
    if (is_leaving_)
        host_.dirty(*this);  // perhaps that was the last one
}

void Session::frame_acknowledged(Numbered& frame) {
    const int64_t now = host_.now_ns();
    for (size_t index = 0; index < slots_.size(); ++index) {
        Slot& slot = slots_[index];
        if ((frame.carriers >> index & 1) == 0 || !slot.link)
            continue;
        if (frame.sends != 1) {
            // Nobody knows which of them brought it.
            slot.pace.forgotten(frame.weight);
            slot.link->let_go_frame(frame.header.number);
            continue;
        }
        slot.pace.acknowledged(frame.weight, frame.mark, now);
        slot.record->round_trip_ns.store(slot.pace.round_trip_ns(), std::memory_order_release);
        slot.record->rate.store(static_cast<uint64_t>(slot.pace.rate()), std::memory_order_release);
        answered(slot, frame.mark.sent_ns, now);
    }
    if (outbox_.has_large() || outbox_.has_small())
        host_.dirty(*this);
}

}  // namespace taskd::rail
