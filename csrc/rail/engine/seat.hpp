// The seat of one group at the sessions. It maps members to sessions and parts to message keys. A lost session becomes
// the failure of every operation that was under way. If the member has left in good order instead, only those
// operations fail that wait for something that member can never do any more, now or later.
//
// Does not: hold bytes or sockets (the sessions do), or know what an operation does.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rail/session/session.hpp"

namespace taskd::rail {

class EngineCore;

constexpr size_t kEndedKept = 256;

class Seat : public Transport, public Roster {
  public:
    Seat(EngineCore& core, int64_t epoch, const std::string& identity, std::vector<int> ranks);
    ~Seat() override;

    // Call it with the lock held, once, before any other call. `sessions`: one for each member, null for this process
    // itself. It is separate from the constructor because the destructor needs the lock.
    void sit(std::vector<std::shared_ptr<Session>> sessions);

    int64_t epoch() const { return epoch_; }

    bool has(const Session& session) const;
    // Fails everything under way, and every later operation, in the same way. Call it with the lock held.
    void fail(Failure::Code code, const std::string& text);
    void lost(const Session& session);

    // ---- Transport
    void send(Party& party, int member, uint32_t part, const void* data, size_t bytes, bool announce) override;
    void receive(Party& party, int member, uint32_t part, void* data, size_t bytes) override;
    void watch(Party& party, int member, uint32_t part) override;
    void release(Party& party, int member, uint32_t part) override;
    void describe(Party& party, int member) override;
    void forget(Party& party) override;
    void wake_at(Party& party, int64_t time_ns) override;
    int64_t now_ns() const override;
    void after_unlock(std::function<void()> job) override;
    std::string name_of(int member) const override;

    // ---- Roster
    Party* find(uint64_t sequence) const override;
    const Form* form_of(uint64_t sequence) const override;

  private:
    using Place = std::unordered_multimap<uint64_t, Party*>::iterator;

    Place place_of(Party& party);
    bool admit(Party& party);
    void tell_failure(Party& party, const Failure& failure);
    // Tells this operation that it waits in vain for a member that has left.
    void tell_left(Party& party, size_t member);
    std::string why_lost(size_t member) const;

    MessageKey key_of(const Party& party, uint32_t part) const { return {group_, party.sequence(), part}; }

    EngineCore& core_;
    const int64_t epoch_;
    const std::string identity_;
    const uint64_t group_;
    std::vector<std::shared_ptr<Session>> sessions_;
    const std::vector<int> ranks_;
    // Two operations may share a sequence number: a message in either direction may have the same one.
    std::unordered_multimap<uint64_t, Party*> parties_;

    // The operations that ended last, by sequence. A member that waits in another operation under the same number asks
    // for them.
    struct Ended {
        uint64_t sequence = UINT64_MAX;
        Form form{};
    };

    std::array<Ended, kEndedKept> ended_;
    bool has_failed_ = false;
    Failure failure_;
};

}  // namespace taskd::rail
