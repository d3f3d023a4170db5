#include "rail/engine/seat.hpp"

#include <algorithm>
#include <cstring>

#include "rail/collectives/group.hpp"
#include "rail/collectives/text.hpp"
#include "rail/engine/core.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail {
namespace {

uint64_t number_of(const std::string& identity) {
    uint64_t number = 0;
    std::memcpy(&number, sha256(identity).data(), sizeof number);
    return number;
}

}  // namespace

Seat::Seat(EngineCore& core, int64_t epoch, const std::string& identity, std::vector<int> ranks)
    : core_(core), epoch_(epoch), identity_(identity), group_(number_of(identity)), ranks_(std::move(ranks)) {}

void Seat::sit(std::vector<std::shared_ptr<Session>> sessions) {
    sessions_ = std::move(sessions);
    core_.seated(*this);
    for (size_t member = 0; member < sessions_.size(); ++member) {
        if (sessions_[member])
            sessions_[member]->traffic().enter(group_, *this, static_cast<int>(member));
    }
    for (const auto& session : sessions_) {
        if (session && session->life().is_over())
            lost(*session);
    }
}

Seat::~Seat() {
    core_.lock();
    for (const auto& session : sessions_) {
        if (session)
            session->traffic().leave(group_, *this);
    }
    core_.unseated(*this);
    sessions_.clear();  // with the lock held, because the last owner of a session ends it
    core_.unlock();
}

bool Seat::has(const Session& session) const {
    return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& mine) { return mine.get() == &session; });
}

void Seat::fail(Failure::Code code, const std::string& text) {
    if (has_failed_)
        return;
    has_failed_ = true;
    failure_.code = code;
    core_.attempt(epoch_, [&] { failure_.text = text; });
    // If one operation cannot be told, the others still are.
    for (const auto& entry : parties_)
        core_.attempt(epoch_, [&] { tell_failure(*entry.second, failure_); });
}

void Seat::lost(const Session& session) {
    for (size_t member = 0; member < sessions_.size(); ++member) {
        if (sessions_[member].get() != &session)
            continue;
        if (!session.life().peer_has_left())
            fail(Failure::Code::kLost, why_lost(member));
        for (const auto& [sequence, party] : parties_) {
            if (session.life().peer_has_left() && sessions_[member]->traffic().awaits(*party, group_))
                tell_left(*party, member);
        }
    }
}

std::string Seat::why_lost(size_t member) const {
    return name_of(static_cast<int>(member)) + " is lost: " + sessions_[member]->life().failure();
}

void Seat::tell_left(Party& party, size_t member) {
    tell_failure(party, {Failure::Code::kLost, why_lost(member)});
}

void Seat::tell_failure(Party& party, const Failure& failure) {
    const auto kind = static_cast<Kind>(party.form().kind);
    // Point-to-point messages have no number that a person could count.
    const std::string number = kind == Kind::kPointToPoint ? "" : " #" + std::to_string(party.sequence());
    const std::string what = taskd::rail::name_of(kind) + number + " in group " + identity_ + ": ";
    Event event{Event::What::kFailed, &party};
    event.failure = std::make_shared<const Failure>(Failure{failure.code, what + failure.text});
    core_.post(std::move(event));
}

Seat::Place Seat::place_of(Party& party) {
    auto [place, end] = parties_.equal_range(party.sequence());
    while (place != end && place->second != &party)
        ++place;
    return place == end ? parties_.end() : place;
}

// False: the group has failed, and the operation is told so.
bool Seat::admit(Party& party) {
    const bool is_new = place_of(party) == parties_.end();
    if (is_new)
        parties_.emplace(party.sequence(), &party);
    if (has_failed_ && is_new)
        tell_failure(party, failure_);
    return !has_failed_;
}

void Seat::send(Party& party, int member, uint32_t part, const void* data, size_t bytes, bool announce) {
    Session& session = *sessions_[static_cast<size_t>(member)];
    if (!admit(party))
        return;
    if (session.life().peer_has_left())
        tell_left(party, static_cast<size_t>(member));
    else
        session.traffic().send(party, member, key_of(party, part), data, bytes, announce);
}

void Seat::receive(Party& party, int member, uint32_t part, void* data, size_t bytes) {
    Session& session = *sessions_[static_cast<size_t>(member)];
    if (!admit(party))
        return;
    session.traffic().receive(party, member, key_of(party, part), data, bytes);
    if (session.life().peer_has_left() && session.traffic().awaits(party, group_))
        tell_left(party, static_cast<size_t>(member));
}

void Seat::watch(Party& party, int member, uint32_t part) {
    Session& session = *sessions_[static_cast<size_t>(member)];
    if (!admit(party))
        return;
    session.traffic().watch(party, member, key_of(party, part));
    if (session.life().peer_has_left() && session.traffic().awaits(party, group_))
        tell_left(party, static_cast<size_t>(member));
}

void Seat::release(Party& party, int member, uint32_t part) {
    core_.unsay_sent(party, member, part);
    sessions_[static_cast<size_t>(member)]->traffic().release(key_of(party, part));
}

void Seat::describe(Party& party, int member) {
    Session& session = *sessions_[static_cast<size_t>(member)];
    if (admit(party) && !session.life().peer_has_left())
        session.traffic().describe(key_of(party, 0), party.form());
}

void Seat::forget(Party& party) {
    core_.forget(party);
    if (const auto found = place_of(party); found != parties_.end()) {
        parties_.erase(found);
        ended_[party.sequence() % kEndedKept] = {party.sequence(), party.form()};
    }
    for (const auto& session : sessions_) {
        if (session)
            session->traffic().forget(party, group_);
    }
}

void Seat::wake_at(Party& party, int64_t time_ns) {
    if (admit(party))
        core_.wake_at(party, time_ns);
}

int64_t Seat::now_ns() const {
    return core_.now_ns();
}

void Seat::after_unlock(std::function<void()> job) {
    core_.after_unlock(std::move(job));
}

std::string Seat::name_of(int member) const {
    const auto place = static_cast<size_t>(member);
    const std::string name = "rank " + std::to_string(ranks_[place]);
    if (!sessions_[place])
        return name + " (this one)";
    const std::string& node = sessions_[place]->pair().peer.node;
    return name + " (" + (node.empty() ? sessions_[place]->pair().peer.rails[0].address : node) + ")";
}

Party* Seat::find(uint64_t sequence) const {
    const auto found = parties_.find(sequence);
    return found == parties_.end() ? nullptr : found->second;
}

const Form* Seat::form_of(uint64_t sequence) const {
    if (const Party* const party = find(sequence))
        return &party->form();
    const Ended& ended = ended_[sequence % kEndedKept];
    return ended.sequence == sequence ? &ended.form : nullptr;
}

}  // namespace taskd::rail
