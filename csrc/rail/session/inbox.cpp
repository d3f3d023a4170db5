#include "rail/session/inbox.hpp"

#include <cstring>

namespace taskd::rail {

void Inbox::erase(Place place) {
    if (place->second.pool) {
        freed_ += place->second.bytes;
        pooled_ -= place->second.bytes;
    }
    if (place->second.is_abandoned)
        --abandoned_;
    entries_.erase(place);
}

Posting Inbox::post(const MessageKey& key, Party& party, int member, void* data, size_t bytes) {
    Inbound& inbound = entries_[key];
    Posting posting;
    if (inbound.has_form && (!(inbound.form == party.form()) || inbound.bytes != bytes)) {
        posting.differs = true;
        posting.theirs = inbound.form;
    }
    if (posting.differs && inbound.bytes != bytes) {
        // What has come does not fit: it is never delivered. What is coming still needs its place.
        if (inbound.pool && !inbound.is_complete) {
            pooled_ -= inbound.bytes;
            inbound.bytes = 0;
            inbound.is_abandoned = true;
            ++abandoned_;
            return posting;
        }
        if (const auto place = entries_.find(key); inbound.pool) {
            freed_ += inbound.bytes;
            pooled_ -= inbound.bytes;
            place->second.pool.reset();
        }
        inbound = Inbound{};
    }
    inbound.party = &party;
    inbound.member = member;
    inbound.data = static_cast<char*>(data);
    inbound.bytes = bytes;
    inbound.is_posted = true;
    inbound.is_watched = false;
    if (inbound.is_complete) {
        if (bytes > 0) {
            party.beginning(member, key.part);
            std::memcpy(data, inbound.pool.get(), bytes);
        }
        posting.is_complete = true;
        erase(entries_.find(key));
        return posting;
    }
    posting.wants_credit = bytes > kEagerBytes || inbound.is_offered;
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
    if (place == entries_.end() || !place->second.is_posted) {
        if (!is_small) {
            // Credit was given, and whoever gave it has gone since.
            return nullptr;
        }
        if (pooled_ + header.bytes > kPoolBytes) {
            *fault = "a small message for which the pool has no room";
            return nullptr;
        }
        Inbound& inbound = place == entries_.end() ? entries_[key_of(header)] : place->second;
        if (inbound.is_abandoned)
            return &inbound;
        // Another copy of the same frame has the same size, and is dropped by its number once one has arrived whole.
        if (inbound.pool && (inbound.is_complete || inbound.bytes != header.bytes)) {
            *fault = "a small message that was sent twice";
            return nullptr;
        }
        inbound.has_form = true;
        inbound.form = header.form;
        inbound.bytes = header.bytes;
        if (!inbound.pool) {
            inbound.pool.reset(new char[header.bytes + 1]);
            pooled_ += header.bytes;
        }
        return &inbound;
    }
    Inbound& inbound = place->second;
    inbound.has_form = true;
    inbound.form = header.form;
    if (inbound.bytes != header.bytes)
        return nullptr;
    if (!inbound.is_begun && header.length > 0) {
        inbound.is_begun = true;
        inbound.party->beginning(inbound.member, header.part);
    }
    return &inbound;
}

char* Inbox::place_of(Inbound& inbound, const FrameHeader& header) {
    if (inbound.is_abandoned)
        return nullptr;
    if (inbound.pool)
        return inbound.pool.get();
    return inbound.data == nullptr ? nullptr : inbound.data + header.offset;
}

Arrival Inbox::finish(const FrameHeader& header, Party** party, int* member) {
    const auto place = entries_.find(key_of(header));
    const bool is_small = header.bytes <= kEagerBytes;
    // What did not pass the pool is freed the moment it is here, wherever it went.
    if (place == entries_.end() || place->second.is_abandoned || place->second.bytes != header.bytes) {
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
    *party = inbound.party;
    *member = inbound.member;
    if (inbound.arrived < inbound.bytes)
        return Arrival::kNothing;
    if (!inbound.is_posted) {
        inbound.is_complete = true;
        return inbound.is_watched ? Arrival::kOffered : Arrival::kNothing;
    }
    if (inbound.pool && inbound.bytes > 0) {
        // It was asked for while it was on its way to the pool.
        inbound.party->beginning(inbound.member, header.part);
        std::memcpy(inbound.data, inbound.pool.get(), inbound.bytes);
    }
    erase(place);
    return Arrival::kArrived;
}

Inbound* Inbox::offer(const FrameHeader& header) {
    if (entries_.size() >= kOffersKept && entries_.count(key_of(header)) == 0)
        return nullptr;
    Inbound& inbound = entries_[key_of(header)];
    inbound.is_offered = true;
    inbound.has_form = true;
    inbound.form = header.form;
    if (!inbound.is_posted)
        inbound.bytes = header.bytes;
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

void Inbox::unwatch(Place place) {
    Inbound& inbound = place->second;
    inbound.party = nullptr;
    inbound.is_watched = false;
    if (!inbound.has_form)
        erase(place);  // nothing of it has come
}

void Inbox::abandon(Place place) {
    Inbound& inbound = place->second;
    // Of a small message that was asked for and has not come, or only in part, the rest must not stay in the pool.
    const bool may_come = inbound.bytes <= kEagerBytes && !inbound.is_complete && !inbound.is_offered;
    if (!may_come || abandoned_ >= kAbandonedKept) {
        erase(place);
        return;
    }
    if (inbound.pool) {
        freed_ += inbound.bytes;
        pooled_ -= inbound.bytes;
    }
    const size_t bytes = inbound.bytes;
    inbound = Inbound{};
    inbound.bytes = bytes;
    inbound.is_abandoned = true;
    ++abandoned_;
}

}  // namespace taskd::rail
