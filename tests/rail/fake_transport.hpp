// A transport within one thread that is as hostile as the interface allows. Everything happens in an order drawn from a
// seed. A call is answered within the call or late. What may be told twice is told twice.
#pragma once

#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "parts/check.hpp"
#include "rail/transport.hpp"

namespace taskd::rail::test {

class FakeNet {
  public:
    using Key = std::tuple<int, int, uint64_t, uint32_t>;  // from, to, sequence, part

    struct Message {
        Party *sender = nullptr, *receiver = nullptr, *watcher = nullptr;
        const void* data = nullptr;
        void* memory = nullptr;
        size_t bytes = 0, room = 0;
        bool is_sent = false, is_announced = false, has_begun = false, has_moved = false;
        std::string copy;
        Form form;
    };

    bool draw(unsigned in) { return random() % in == 0; }

    // Does one of the things that may happen to this message.
    bool act(const Key& key, Message& m) {
        const auto [from, to, sequence, part] = key;
        const bool is_eager = m.is_sent && m.bytes <= kEagerBytes;
        if (m.watcher != nullptr && m.is_sent && (is_eager || m.is_announced))
            return std::exchange(m.watcher, draw(2) ? m.watcher : nullptr)->offered(from, part), true;
        if (m.sender != nullptr && (is_eager || m.has_moved) && draw(2))
            return std::exchange(m.sender, nullptr)->sent(to, part), true;
        if (m.receiver == nullptr || !m.is_sent)
            return m.sender != nullptr && (is_eager || m.has_moved);
        if (!m.form.fits(m.receiver->form()) || (m.form.is_message() ? m.bytes > m.room : m.bytes != m.room))
            return m.receiver->differs(from, m.form), true;
        if (!m.has_begun || (!m.has_moved && draw(4)))
            return m.has_begun = true, m.receiver->beginning(from, part), true;
        if (!std::exchange(m.has_moved, true))
            return m.bytes == 0 || std::memcpy(m.memory, is_eager ? m.copy.data() : m.data, m.bytes) != nullptr;
        return std::exchange(m.receiver, nullptr)->arrived(from, part), true;
    }

    // Returns false if nothing can happen.
    bool step() {
        auto place = messages.empty() ? messages.end() : std::next(messages.begin(), random() % messages.size());
        for (size_t tries = messages.size(); tries > 0; --tries, ++place) {
            if (place == messages.end())
                place = messages.begin();
            if (act(place->first, place->second))
                return true;
        }
        return false;
    }

    std::mt19937 random;
    int64_t now_ns = 1;
    std::map<Key, Message> messages;
    std::map<Party*, int64_t> wakes;
    std::map<std::pair<int, uint64_t>, Party*> parties;  // member, sequence
    std::vector<std::function<void()>> jobs;
};

class FakeTransport : public Transport {
  public:
    FakeTransport(FakeNet& net, int me) : net_(net), me_(me) {}

    void send(Party& party, int member, uint32_t part, const void* data, size_t bytes, bool announce) override {
        const FakeNet::Key key{me_, member, party.sequence(), part};
        FakeNet::Message& m = known(party).messages[key];
        CHECK(!m.is_sent);
        m.sender = &party, m.data = data, m.bytes = bytes, m.is_sent = true, m.is_announced = announce;
        m.form = party.form();
        if (bytes != 0 && bytes <= kEagerBytes)
            m.copy.assign(static_cast<const char*>(data), bytes);
        if (net_.draw(3))
            net_.act(key, m);
    }

    void receive(Party& party, int member, uint32_t part, void* data, size_t bytes) override {
        const FakeNet::Key key{member, me_, party.sequence(), part};
        FakeNet::Message& m = known(party).messages[key];
        CHECK(m.receiver == nullptr && !m.has_moved);
        m.receiver = &party, m.watcher = nullptr, m.memory = data, m.room = bytes;
        for (int times = net_.draw(3) ? 4 : 0; times > 0 && net_.messages.count(key) != 0; --times)
            net_.act(key, m);
    }

    void watch(Party& party, int member, uint32_t part) override {
        known(party).messages[{member, me_, party.sequence(), part}].watcher = &party;
    }

    void release(Party& party, int member, uint32_t part) override {
        FakeNet::Message& m = net_.messages.at({me_, member, party.sequence(), part});
        CHECK(m.has_moved);  // the receiver certainly has it
        m.sender = nullptr, m.data = nullptr;
    }

    // Does nothing for a member that is not there yet. A later call tells it.
    void describe(Party& party, int member) override {
        const auto found = net_.parties.find({member, party.sequence()});
        if (found != net_.parties.end() && !(found->second->form() == party.form()))
            found->second->differs(me_, party.form());
    }

    void forget(Party& party) override {
        for (auto& [key, m] : net_.messages) {
            m.receiver = m.receiver == &party ? nullptr : m.receiver;
            m.watcher = m.watcher == &party ? nullptr : m.watcher;
            m.is_sent = m.is_sent && !(m.sender == &party && m.bytes > kEagerBytes);  // a small one still arrives
            m.sender = m.sender == &party ? nullptr : m.sender;
        }
        net_.parties.erase({me_, party.sequence()});
        net_.wakes.erase(&party);
    }

    void wake_at(Party& party, int64_t time_ns) override { known(party).wakes[&party] = time_ns; }

    int64_t now_ns() const override { return net_.now_ns; }

    void after_unlock(std::function<void()> job) override { net_.jobs.push_back(std::move(job)); }

    std::string name_of(int member) const override { return "rank " + std::to_string(member); }

  private:
    FakeNet& known(Party& party) {
        net_.parties[{me_, party.sequence()}] = &party;
        return net_;
    }

    FakeNet& net_;
    const int me_;
};

}  // namespace taskd::rail::test
