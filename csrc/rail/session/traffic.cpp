#include "rail/session/traffic.hpp"

#include <cerrno>

namespace taskd::rail {

// ---- for groups

void Traffic::leave(uint64_t group, const Roster& roster) {
    if (const auto found = rosters_.find(group); found != rosters_.end() && found->second.roster == &roster)
        rosters_.erase(found);
}

void Traffic::send(Party& party, int member, const MessageKey& key, const void* data, size_t bytes, bool announce) {
    const Form* differs = nullptr;
    const Form* const other = stranger(party, key);
    if (other != nullptr)
        host_.post({Event::What::kDiffers, &party, member, key.part, *other});
    if (outbox_.add(key, party, member, data, bytes, announce, &differs))
        host_.post({Event::What::kSent, &party, member, key.part});
    if (differs != nullptr) {
        host_.post({Event::What::kDiffers, &party, member, key.part, *differs});
        outbox_.add_control(FrameType::kDiffers, key, party.form(), bytes);  // the rank that gave the credit waits
    }
    host_.dirty();
}

void Traffic::receive(Party& party, int member, const MessageKey& key, void* data, size_t bytes) {
    if (const Form* other = stranger(party, key))
        host_.post({Event::What::kDiffers, &party, member, key.part, *other});
    const Posting posting = inbox_.post(key, party, member, data, bytes);
    host_.wake_by(host_.now_ns() + kLossLookNs);
    if (posting.differs) {
        host_.post({Event::What::kDiffers, &party, member, key.part, posting.theirs});
        outbox_.add_control(FrameType::kDiffers, key, party.form(), bytes);
        host_.dirty();
    }
    if (posting.is_complete)
        host_.post({Event::What::kArrived, &party, member, key.part});
    if (posting.wants_credit && !life_.is_over()) {
        outbox_.add_control(FrameType::kCredit, key, party.form(), bytes);
        host_.dirty();
    }
}

void Traffic::watch(Party& party, int member, const MessageKey& key) {
    if (inbox_.watch(key, party, member))
        host_.post({Event::What::kOffered, &party, member, key.part});
}

void Traffic::release(const MessageKey& key) {
    if (outbox_.take_back(key))
        host_.dirty();
}

void Traffic::describe(const MessageKey& key, const Form& form) {
    outbox_.add_control(FrameType::kDescribe, key, form, 0);
    host_.dirty();
}

void Traffic::forget(Party& party, uint64_t group) {
    outbox_.take_back_all(group, party.sequence(), party);
    inbox_.forget(group, party.sequence(), party);
}

bool Traffic::awaits(const Party& party, uint64_t group) const {
    return inbox_.awaits(group, party.sequence(), party) || outbox_.awaits(group, party.sequence(), party);
}

// ---- what comes

char* Traffic::begins(Link& link, const FrameHeader& header) {
    compare(header);
    compare_message(header);
    const char* fault = nullptr;
    Inbound* const inbound = inbox_.begin(header, &fault);
    if (fault != nullptr)
        link.cut(EPROTO, fault);
    return inbound == nullptr ? nullptr : Inbox::place_of(*inbound, header);
}

void Traffic::arrived(Link& link, const FrameHeader& header) {
    Party* party = nullptr;
    int member = 0;
    const char* fault = nullptr;
    const Arrival arrival = inbox_.finish(header, link.was_placed(), &party, &member, &fault);
    if (fault != nullptr)
        link.cut(EPROTO, fault);
    if (arrival == Arrival::kArrived)
        host_.post({Event::What::kArrived, party, member, header.part});
    else if (arrival == Arrival::kOffered)
        host_.post({Event::What::kOffered, party, member, header.part});
}

void Traffic::control(Link& link, const FrameHeader& header) {
    if (header.type == FrameType::kCredit)
        hear_credit(header);
    else if (header.type == FrameType::kOffer)
        hear_offer(link, header);
    else if (header.type == FrameType::kDescribe || header.type == FrameType::kDiffers)
        hear_form(header);
}

void Traffic::hear_credit(const FrameHeader& header) {
    const MessageKey key = key_of(header);
    compare(header);
    const Outgoing* const message = outbox_.waiting(key);
    if (message != nullptr && message->party != nullptr && !message->form.fits(header.form))
        host_.post({Event::What::kDiffers, message->party, message->member, header.part, header.form});
    outbox_.credit(key, header.form);
    host_.dirty();
}

void Traffic::hear_offer(Link& link, const FrameHeader& header) {
    compare(header);
    compare_message(header);
    const char* fault = nullptr;
    const Inbound* const inbound = inbox_.offer(header, &fault);
    if (inbound == nullptr) {
        link.cut(EPROTO, fault);
        return;
    }
    // A large message that was asked for has its credit already, unless its sender dropped that.
    const bool wants_credit = header.bytes <= kEagerBytes || header.offset == kAsksAgain;
    if (inbound->is_posted && wants_credit && inbound->bytes == header.bytes) {
        outbox_.add_control(FrameType::kCredit, key_of(header), inbound->party->form(), inbound->bytes);
        host_.dirty();
    } else if (inbound->is_watched) {
        host_.post({Event::What::kOffered, inbound->party, inbound->member, header.part});
    }
}

// Takes a description of an operation, or the answer that it differs from the operation here.
void Traffic::hear_form(const FrameHeader& header) {
    const MessageKey key = key_of(header);
    const bool is_answer = header.type == FrameType::kDiffers;
    compare(header);
    const Outgoing* const message = outbox_.waiting(key);
    if (is_answer && message != nullptr && message->party != nullptr)
        host_.post({Event::What::kDiffers, message->party, message->member, header.part, header.form});
    if (header.form.is_message()) {
        if (is_answer)
            hear_answer(header);
        return;
    }
    const auto port = rosters_.find(header.group);
    const Form* const mine = port == rosters_.end() ? nullptr : port->second.roster->form_of(header.sequence);
    if (!is_answer && mine != nullptr && !(*mine == header.form)) {
        outbox_.add_control(FrameType::kDiffers, key, *mine, 0);
        host_.dirty();
    }
}

// The sender of a message says that its receiver has asked for another one.
void Traffic::hear_answer(const FrameHeader& header) {
    const Inbound* const inbound = inbox_.posted(key_of(header));
    if (inbound != nullptr && !header.form.fits(inbound->party->form()))
        host_.post({Event::What::kDiffers, inbound->party, inbound->member, header.part, header.form});
}

// The form of another operation whose message came under this one's number. Point-to-point messages have a number for
// each direction, so there only the same message can be compared.
const Form* Traffic::stranger(const Party& party, const MessageKey& key) const {
    if (party.form().is_message())
        return nullptr;
    return inbox_.stranger(key.group, key.sequence, party.form());
}

// Compares operations: two ranks in different operations under one sequence do not wait for each other in vain.
void Traffic::compare(const FrameHeader& header) {
    if (header.form.is_message())
        return;
    const auto port = rosters_.find(header.group);
    if (port == rosters_.end())
        return;
    Party* const mine = port->second.roster->find(header.sequence);
    if (mine != nullptr && !(mine->form() == header.form))
        host_.post({Event::What::kDiffers, mine, port->second.member, header.part, header.form});
}

// Compares a message that comes with the memory that was named for it.
void Traffic::compare_message(const FrameHeader& header) {
    const Inbound* const inbound = inbox_.posted(key_of(header));
    if (inbound == nullptr || (inbound->takes(header) && header.form.fits(inbound->party->form())))
        return;
    host_.post({Event::What::kDiffers, inbound->party, inbound->member, header.part, header.form});
    // The sender of a large message would wait for credit that never comes.
    outbox_.add_control(FrameType::kDiffers, key_of(header), inbound->party->form(), 0);
    host_.dirty();
}

}  // namespace taskd::rail
