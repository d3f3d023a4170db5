#include "rail/session/inbox.hpp"

#include <cstring>

namespace taskd::rail {

namespace {

constexpr char kSentTwice[] = "a small message that was sent twice";
constexpr char kOtherSize[] = "a message that is of another size than it was";
constexpr char kNoRoom[] = "a small message for which the pool has no room";
constexpr char kTooMuch[] = "more bytes of a message than it has";
constexpr char kTooMany[] = "more messages are offered than anybody could want";

}  // namespace

// The only place where message memory goes. If bytes are still on their way into pool memory, they are counted as freed
// when their frame ends, in finish().
void Inbox::drop_memory(Place place) {
    Inbound& inbound = place->second;
    if (!inbound.pool && !inbound.is_posted)
        return;
    borrowers_.let_go(place->first);
    if (inbound.pool) {
        pooled_ -= inbound.pool.bytes();
        if (inbound.is_complete)
            freed_ += inbound.pool.bytes();
        inbound.pool = Pooled();
    }
    inbound.data = nullptr;
    inbound.is_posted = inbound.is_complete = false;
}

// Replaces the entry by an empty one.
void Inbox::replace(Place place) {
    drop_memory(place);
    if (place->second.is_abandoned)
        --abandoned_;
    place->second = Inbound{};
}

void Inbox::erase(Place place) {
    replace(place);
    entries_.erase(place);
}

Posting Inbox::post(const MessageKey& key, Party& party, int member, void* data, size_t bytes) {
    const Place place = entries_.try_emplace(key).first;
    Inbound& inbound = place->second;
    Posting posting;
    const bool may_be_shorter = party.form().is_message();
    const bool has_room = may_be_shorter ? inbound.bytes <= bytes : inbound.bytes == bytes;
    if (inbound.has_form && !(has_room && inbound.form.fits(party.form()))) {
        posting.differs = true;
        posting.theirs = inbound.form;
    }
    if (posting.differs && !has_room) {
        // What has come does not fit, so it is never delivered. The rest of what is coming is dropped.
        const bool is_coming = inbound.pool && !inbound.is_complete;
        replace(place);
        if (is_coming) {
            inbound.is_abandoned = true;
            ++abandoned_;
            return posting;
        }
    }
    inbound.party = &party;
    inbound.member = member;
    inbound.data = static_cast<char*>(data);
    inbound.room = bytes;
    inbound.may_be_shorter = may_be_shorter;
    if (!inbound.has_form)
        inbound.bytes = bytes;
    inbound.is_posted = true;
    inbound.is_watched = false;
    if (inbound.is_complete) {
        if (inbound.bytes > 0) {
            party.beginning(member, key.part);
            std::memcpy(data, inbound.pool.data(), inbound.bytes);
        }
        posting.is_complete = true;
        erase(place);
        return posting;
    }
    posting.wants_credit = inbound.bytes > kEagerBytes || inbound.is_offered;
    return posting;
}

bool Inbox::watch(const MessageKey& key, Party& party, int member) {
    Inbound& inbound = entries_[key];
    inbound.party = &party;
    inbound.member = member;
    inbound.is_watched = true;
    return inbound.has_form;
}

const Inbound* Inbox::posted(const MessageKey& key) const {
    const auto place = entries_.find(key);
    return place != entries_.end() && place->second.is_posted ? &place->second : nullptr;
}

Inbound* Inbox::begin(const FrameHeader& header, const char** fault) {
    const bool is_small = header.bytes <= kEagerBytes;
    const auto place = entries_.find(key_of(header));
    // A large message comes only after credit, so the operation that gave the credit has gone since.
    if (place == entries_.end() || !place->second.is_posted)
        return is_small ? begin_unasked(place, header, fault) : nullptr;
    Inbound& inbound = place->second;
    const bool is_taken = inbound.takes(header);
    inbound.has_form = true;
    inbound.form = header.form;
    if (!is_taken)
        return nullptr;
    inbound.bytes = header.bytes;
    if (is_small && inbound.number != 0 && inbound.number != header.number) {
        *fault = kSentTwice;
        return nullptr;
    }
    inbound.number = is_small ? header.number : 0;
    if (!inbound.is_begun && !inbound.pool && header.length > 0) {
        inbound.is_begun = true;
        inbound.party->beginning(inbound.member, header.part);
    }
    return &inbound;
}

// A small message goes into the pool. Another copy of its frame has the same number, and is dropped because of it once
// one copy has arrived whole.
Inbound* Inbox::begin_unasked(Place place, const FrameHeader& header, const char** fault) {
    const bool is_known = place != entries_.end();
    if (is_known && place->second.is_abandoned)
        return &place->second;
    if (is_known && place->second.number != 0 && place->second.number != header.number)
        *fault = kSentTwice;
    else if (is_known && place->second.has_form && place->second.bytes != header.bytes)
        *fault = kOtherSize;
    else if (!(is_known && place->second.pool) && pooled_ + header.bytes > kFirstPoolBytes + grown_)
        *fault = kNoRoom;
    if (*fault != nullptr)
        return nullptr;
    Inbound& inbound = is_known ? place->second : entries_[key_of(header)];
    if (!inbound.pool) {
        if (grown_ == 0)
            grown_ = pools_.take();
        inbound.pool.take(header.bytes);
        pooled_ += header.bytes;
    }
    inbound.has_form = true;
    inbound.form = header.form;
    inbound.bytes = header.bytes;
    inbound.number = header.number;
    return &inbound;
}

char* Inbox::place_of(Inbound& inbound, const FrameHeader& header) {
    static char nothing;
    if (inbound.is_abandoned)
        return nullptr;
    if (inbound.pool)
        return inbound.pool.data();
    return inbound.bytes == 0 ? &nothing : inbound.data + header.offset;
}

Arrival Inbox::finish(const FrameHeader& header, bool was_placed, Party** party, int* member, const char** fault) {
    const auto place = entries_.find(key_of(header));
    const bool is_small = header.bytes <= kEagerBytes;
    // Bytes that do not go through the pool count as freed as soon as they are here, wherever they went.
    if (!was_placed || place == entries_.end() || place->second.bytes != header.bytes) {
        if (is_small)
            freed_ += header.bytes;
        if (place != entries_.end() && place->second.is_abandoned)
            erase(place);
        return Arrival::kNothing;
    }
    Inbound& inbound = place->second;
    if (!inbound.pool && is_small)
        freed_ += header.bytes;
    inbound.arrived += header.length;
    if (inbound.arrived < inbound.bytes)
        return Arrival::kNothing;
    // All of it has come, so nothing can be on its way. Otherwise some parts came twice, and others did not come at
    // all.
    if (inbound.arrived > inbound.bytes || borrowers_.is_written(place->first)) {
        *fault = kTooMuch;
        return Arrival::kNothing;
    }
    *party = inbound.party;
    *member = inbound.member;
    inbound.is_complete = true;
    if (!inbound.is_posted)
        return inbound.is_watched ? Arrival::kOffered : Arrival::kNothing;
    if (inbound.pool && inbound.bytes > 0) {
        // It was asked for while it was on its way to the pool.
        inbound.party->beginning(inbound.member, header.part);
        std::memcpy(inbound.data, inbound.pool.data(), inbound.bytes);
    }
    erase(place);
    return Arrival::kArrived;
}

Inbound* Inbox::offer(const FrameHeader& header, const char** fault) {
    const auto place = entries_.find(key_of(header));
    if (place == entries_.end() && entries_.size() >= kOffersKept)
        *fault = kTooMany;
    else if (place != entries_.end() && !place->second.is_posted && place->second.has_form &&
             place->second.bytes != header.bytes)
        *fault = kOtherSize;
    if (*fault != nullptr)
        return nullptr;
    Inbound& inbound = place != entries_.end() ? place->second : entries_[key_of(header)];
    if (!inbound.is_posted || inbound.takes(header))
        inbound.bytes = header.bytes;
    inbound.is_offered = true;
    inbound.has_form = true;
    inbound.form = header.form;
    return &inbound;
}

bool Inbox::awaits(uint64_t group, uint64_t sequence, const Party& party) const {
    for (auto place = entries_.lower_bound({group, sequence, 0});
         place != entries_.end() && place->first.group == group && place->first.sequence == sequence; ++place) {
        const Inbound& inbound = place->second;
        if (inbound.party == &party && (inbound.is_posted || (inbound.is_watched && !inbound.has_form)))
            return true;
    }
    return false;
}

const Form* Inbox::stranger(uint64_t group, uint64_t sequence, const Form& mine) const {
    const auto place = entries_.lower_bound({group, sequence, 0});
    if (place == entries_.end() || place->first.group != group || place->first.sequence != sequence)
        return nullptr;
    const Inbound& inbound = place->second;
    return inbound.has_form && !(inbound.form == mine) ? &inbound.form : nullptr;
}

void Inbox::forget(uint64_t group, uint64_t sequence, const Party& party) {
    auto place = entries_.lower_bound({group, sequence, 0});
    while (place != entries_.end() && place->first.group == group && place->first.sequence == sequence) {
        const Place here = place++;
        if (here->second.party != &party)
            continue;
        if (here->second.is_watched)
            unwatch(here);
        else
            abandon(here);
    }
}

void Inbox::unwatch(Place place) {
    Inbound& inbound = place->second;
    inbound.party = nullptr;
    inbound.is_watched = false;
    if (!inbound.has_form)
        erase(place);  // nothing of it has come
}

void Inbox::abandon(Place place) {
    Inbound& inbound = place->second;
    // A small message was asked for and has not come, or only in part: the rest must not stay in the pool.
    const bool may_be_small = inbound.bytes <= kEagerBytes || (inbound.may_be_shorter && !inbound.has_form);
    const bool may_come = may_be_small && !inbound.is_complete && !inbound.is_offered;
    if (!may_come || abandoned_ >= kAbandonedKept) {
        erase(place);
        return;
    }
    const size_t bytes = inbound.bytes;
    replace(place);
    inbound.bytes = bytes;
    inbound.is_abandoned = true;
    ++abandoned_;
}

}  // namespace taskd::rail
