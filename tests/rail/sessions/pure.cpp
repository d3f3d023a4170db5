// Tests of what a session decides without sockets: numbers, silence, pairs of rails, credits.
//
// Does not: connect anything (main.cpp does).
#include "pure.hpp"

#include <random>
#include <vector>

#include "rail/io/endpoint.hpp"
#include "rail/io/frame.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/standing.hpp"
#include "team.hpp"

namespace taskd::rail::test {

// There are more credits than are kept. A message whose credit was dropped asks for it once, and is sent once.
void a_dropped_credit_is_asked_for_again(uint64_t) {
    class Silent : public Party {
      public:
        void sent(int, uint32_t) override {}

        void arrived(int, uint32_t) override {}

        void beginning(int, uint32_t) override {}

        void offered(int, uint32_t) override {}

        void differs(int, const Form&) override {}

        void failed(const Failure&) override {}

        void woken(int64_t) override {}

        uint64_t sequence() const override { return 0; }

        const Form& form() const override { return form_; }

      private:
        const Form form_{};
    } party;

    Paths paths;
    Outbox outbox(1, paths);
    const std::vector<char> data(kEagerBytes + 1);
    const Form* differs = nullptr;
    for (uint64_t sequence = 0; sequence <= kCreditsKept; ++sequence)
        outbox.credit({0, sequence, 0}, party.form());
    outbox.add({0, 0, 0}, party, 1, data.data(), data.size(), false, &differs);
    CHECK(outbox.has_small() && !outbox.has_large());
    const Numbered& offer = outbox.next_small();
    CHECK(offer.header.type == FrameType::kOffer && offer.header.offset == kAsksAgain);
    outbox.credit({0, 0, 0}, party.form());
    outbox.credit({0, 0, 0}, party.form());
    CHECK(outbox.has_large());
    CHECK(outbox.next_large(1 << 20).header.length == data.size());
    CHECK(!outbox.has_large() && differs == nullptr);
}

// Compares the arrivals with a plain set of numbers.
void arrivals_are_a_set(uint64_t seed) {
    std::mt19937_64 random(seed);
    Arrivals arrivals;
    std::vector<bool> plain(400);
    for (int turn = 0; turn < 3000; ++turn) {
        const uint64_t number = 1 + random() % 399;
        CHECK(arrivals.has(number) == plain[number]);
        CHECK(arrivals.add(number) != plain[number]);
        plain[number] = true;
        uint64_t through = 0;
        while (through + 1 < plain.size() && plain[through + 1])
            ++through;
        CHECK(arrivals.through() == through);
        for (size_t index = 1; index < arrivals.above().size(); ++index)
            CHECK(arrivals.above()[index - 1].last + 1 < arrivals.above()[index].first);
    }
}

void silence_needs_a_witness(uint64_t) {
    constexpr int64_t kMs = kMillisecondNs;
    Standing standing;
    standing.connected();
    standing.suspect(1000 * kMs);
    CHECK(standing.wants_probe(1000 * kMs));
    standing.probed(1000 * kMs);
    CHECK(!standing.judge(5000 * kMs, 0));           // all rails were silent
    CHECK(!standing.judge(5000 * kMs, 1010 * kMs));  // the witness was asked too soon after this path
    CHECK(!standing.judge(1090 * kMs, 1080 * kMs));  // too early
    standing.progressed(1095 * kMs);
    CHECK(!standing.judge(1150 * kMs, 1140 * kMs));  // slow, not silent
    Standing deaf = standing;
    CHECK(standing.judge(1300 * kMs, 1290 * kMs));
    CHECK(standing.state() == PathState::kDead);
    for (int64_t now = 1100; now < 2090; now += 10) {
        deaf.carried(now * kMs);  // all bytes arrive, but nothing answers
        CHECK(!deaf.judge(now * kMs, now * kMs));
    }
    CHECK(deaf.judge(2095 * kMs, 2095 * kMs));
}

void rails_pair_by_network_then_name_then_order(uint64_t) {
    Endpoint one;
    Endpoint two;
    one.rails = {{"a", "10.0.0.1", 1, 24}, {"b", "10.0.1.1", 1, 24}, {"x", "10.0.2.1", 1, 24}};
    two.rails = {{"y", "10.0.2.2", 1, 24}, {"b", "10.9.1.1", 1, 24}, {"z", "10.7.0.1", 1, 24}};
    const std::vector<std::pair<size_t, size_t>> expected{{0, 2}, {1, 1}, {2, 0}};
    CHECK(pair_rails(one, two) == expected);
    two.rails = {{"only", "10.8.0.1", 1, 24}};
    CHECK(pair_rails(one, two).size() == 1 && pair_rails(two, one).size() == 1);
    // The system may give names in another order on another host. Such names do not decide.
    one.rails = {{"eth0", "10.1.0.1", 1, 24}, {"eth1", "10.2.0.1", 1, 24}, {"eth2", "10.3.0.1", 1, 24}};
    two.rails = {{"eth1", "10.1.0.2", 1, 24}, {"eth0", "10.2.0.2", 1, 24}, {"eth2", "10.3.0.2", 1, 24}};
    CHECK((pair_rails(one, two) == std::vector<std::pair<size_t, size_t>>{{0, 0}, {1, 1}, {2, 2}}));
    // On one network, the names tell which rails belong together.
    one.rails = {{"a", "10.1.0.1", 1, 24}, {"b", "10.1.0.2", 1, 24}};
    two.rails = {{"b", "10.1.0.3", 1, 24}, {"a", "10.1.0.4", 1, 24}};
    CHECK((pair_rails(one, two) == std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 0}}));
}

}  // namespace taskd::rail::test
