// Receives from any rank while several ranks send. A message that one receive only listened for is there for the next.
// Receives into memory that is larger than the message.
//
// Every message of a member comes, and in order. It may have come before any receive asked for it, or it comes while a
// receive listens, or the receive that listened for it was given up. See messages.hpp.
#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "team.hpp"

namespace taskd::rail::test {

void from_anybody_everything_comes(uint64_t seed) {
    constexpr int kSize = 4;
    constexpr uint32_t kEach = 12;
    constexpr uint32_t kTag = 5;
    Team team(kSize, 2, seed);
    const auto groups = team.join(1);
    const size_t bytes = seed % 2 == 0 ? 40 : 100'000;  // copied to the pool, or offered
    std::vector<std::vector<char>> given(kSize * kEach, std::vector<char>(bytes));
    std::vector<Ending> sent(given.size());
    const auto send_all = [&](int from) {
        for (uint32_t index = 0; index < kEach; ++index) {
            const size_t place = static_cast<size_t>(from) * kEach + index;
            std::memset(given[place].data(), static_cast<int>(place), bytes);
            groups[static_cast<size_t>(from)]->send(given[place].data(), bytes, 0, kTag, kPatienceNs,
                                                    sent[place].done());
        }
    };
    // The messages of one member are on their way before any receive listens. Those of the others come meanwhile.
    send_all(1);
    std::thread second([&] { send_all(2); });
    std::thread third([&] { send_all(3); });
    uint32_t next[kSize] = {};
    std::vector<char> taken(bytes);
    for (uint32_t count = 0; count < (kSize - 1) * kEach; ++count) {
        int source = -1;
        Ending received;
        groups[0]->receive(taken.data(), bytes, -1, kTag, kPatienceNs, &source, received.done());
        CHECK(received.wait().empty());
        CHECK(source > 0 && source < kSize && next[source] < kEach);
        CHECK(taken == given[static_cast<size_t>(source) * kEach + next[source]++]);
    }
    second.join();
    third.join();
    for (size_t place = kEach; place < sent.size(); ++place)
        CHECK(sent[place].wait().empty());
    // A receive that is given up leaves the message that it listened for to the next receive.
    Ending given_up;
    const uint64_t handle =
        groups[0]->receive(taken.data(), bytes, -1, kTag + 1, kPatienceNs, nullptr, given_up.done());
    groups[0]->cancel(handle, "enough");
    given_up.wait();
    CHECK(given_up.code() == Failure::Code::kAborted);
    Ending told;
    Ending heard;
    char word = 'w';
    char found = 0;
    groups[1]->send(&word, 1, 0, kTag + 1, kPatienceNs, told.done());
    groups[0]->receive(&found, 1, -1, kTag + 1, kPatienceNs, nullptr, heard.done());
    CHECK(told.wait().empty() && heard.wait().empty() && found == word);
}

// Before and after the receive, small and large, more of them than the pool holds, over rails that fail.
void a_message_may_be_shorter_than_its_place(uint64_t seed) {
    constexpr size_t kRoom = 300'000;
    constexpr uint32_t kMany = 120;
    Team team(2, 2, seed, 8);
    const auto groups = team.join(1);
    std::mt19937_64 random(seed);
    std::vector<std::vector<char>> given(kMany);
    std::vector<std::vector<char>> taken(kMany, std::vector<char>(kRoom, 'k'));
    std::vector<Ending> sent(kMany);
    std::vector<Ending> received(kMany);
    const size_t sizes[] = {0, 1, 60'000, kEagerBytes, kEagerBytes + 1, 200'000, kRoom};
    std::vector<uint32_t> order;
    for (uint32_t tag = 0; tag < kMany; ++tag) {
        given[tag].assign(sizes[random() % std::size(sizes)], static_cast<char>('a' + tag % 20));
        order.insert(order.end(), {tag, tag});
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<bool> begun(kMany);
    for (const uint32_t tag : order) {
        // The first of the two is the send under every other tag, else the receive.
        if (begun[tag] != (tag % 2 == 0))
            groups[0]->send(given[tag].data(), given[tag].size(), 1, tag, kPatienceNs, sent[tag].done());
        else
            groups[1]->receive(taken[tag].data(), {kRoom, Dtype::kFloat32}, tag % 3 == 0 ? -1 : 0, tag, kPatienceNs,
                               nullptr, received[tag].done());
        begun[tag] = true;
    }
    for (uint32_t tag = 0; tag < kMany; ++tag) {
        CHECK(sent[tag].wait().empty() && received[tag].wait().empty());
        given[tag].resize(kRoom, 'k');
        CHECK(taken[tag] == given[tag]);
    }
}

}  // namespace taskd::rail::test
