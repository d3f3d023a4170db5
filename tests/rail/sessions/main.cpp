// Tests of sessions and the engine over real sockets, some of which fail on purpose; to be built with sanitizers.
//
// Arguments: a seed and how many seeds to run from there (tests/rail/test_sessions.py does both).
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "endpoint.hpp"
#include "frame.hpp"
#include "pace.hpp"
#include "team.hpp"

namespace taskd::rail::test {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

float value(uint64_t seed, int rank, size_t index) {
    return static_cast<float>((index * 31 + static_cast<size_t>(rank) * 17 + seed) % 1009) / 7.0F;
}

// The same operations on all ranks, by the seed; every result is compared with a plain sum in the order of ranks.
void run_operations(const Group& shape, Group& group, uint64_t seed, int rounds) {
    std::mt19937_64 random(seed);
    const int size = shape.size();
    const int me = group.me();
    for (int round = 0; round < rounds; ++round) {
        const size_t count = 1 + random() % (size_t{1} << (1 + random() % 21));
        const uint64_t salt = random();
        std::vector<float> data(count);
        for (size_t index = 0; index < count; ++index)
            data[index] = value(salt, me, index);
        std::vector<float> taken(count, -1.0F);
        Ending reduced;
        Ending sent;
        Ending received;
        const std::vector<float> own = data;
        group.send(own.data(), count * sizeof(float), (me + 1) % size, 7, kPatienceNs, sent.done());
        group.all_reduce(data.data(), count, Dtype::kFloat32, Reduction::kSum, kPatienceNs, reduced.done());
        group.receive(taken.data(), count * sizeof(float), (me + size - 1) % size, 7, kPatienceNs, nullptr,
                      received.done());
        for (Ending* ending : {&sent, &received, &reduced}) {
            if (const std::string trouble = ending->wait(); !trouble.empty()) {
                std::fprintf(stderr, "seed %lu round %d rank %d: %s\n", seed, round, me, trouble.c_str());
                CHECK(trouble.empty());
            }
        }
        for (size_t index = 0; index < count; ++index) {
            float sum = value(salt, 0, index);
            for (int rank = 1; rank < size; ++rank)
                sum += value(salt, rank, index);
            CHECK(data[index] == sum);
            CHECK(taken[index] == value(salt, (me + size - 1) % size, index));
        }
    }
}

void faults_change_no_bit(uint64_t seed) {
    const int size = 2 + static_cast<int>(seed % 3);
    Team team(size, 2, seed, 12);
    const auto groups = team.join(1);
    team.each([&](int rank) { run_operations(*groups[0], *groups[static_cast<size_t>(rank)], seed, 12); });
    int struck = 0;
    for (const auto& sockets : team.sockets)
        struck += sockets->struck();
    std::printf("seed %lu: %d faults struck\n", seed, struck);
}

// Aborted in the middle, again and again: it returns at once, nothing is touched afterwards, the next epoch works.
void aborts_are_quick_and_final(uint64_t seed) {
    Team team(2, 2, seed, 0);
    std::mt19937_64 random(seed);
    std::vector<double> times;
    for (int64_t epoch = 1; epoch <= 12; ++epoch) {
        const auto groups = team.join(epoch);
        std::vector<float> data[2];
        Ending endings[2];
        for (int rank = 0; rank < 2; ++rank) {
            data[rank].assign(4 << 20, 1.0F);
            groups[static_cast<size_t>(rank)]->all_reduce(data[rank].data(), data[rank].size(), Dtype::kFloat32,
                                                          Reduction::kSum, 0, endings[rank].done());
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
        const auto begin = Clock::now();
        team.engines[0]->abort(epoch, "the test says so");
        times.push_back(milliseconds_since(begin));
        CHECK(endings[0].is_done());
        std::vector<float> copy = data[0];
        std::fill(data[0].begin(), data[0].end(), -7.0F);
        team.engines[1]->abort(epoch, "the test says so");
        CHECK(endings[1].is_done());
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK(std::all_of(data[0].begin(), data[0].end(), [](float each) { return each == -7.0F; }));
        bool refused = false;
        try {
            team.engines[0]->join(epoch, "late", team.endpoints, team.ranks, 0, std::chrono::milliseconds(100));
        } catch (const Trouble&) {
            refused = true;
        }
        CHECK(refused);
    }
    std::sort(times.begin(), times.end());
    std::printf("abort: median %.2f ms, longest %.2f ms\n", times[times.size() / 2], times.back());
}

// Full windows in opposite order: no operation can stand in another's way.
void groups_in_opposite_order_do_not_wait_for_each_other(uint64_t) {
    Team team(2);
    const auto first = team.join(1, "first");
    const auto second = team.join(1, "second");
    constexpr size_t kLarge = 8 << 20;
    constexpr size_t kSmall = 32 << 10;
    constexpr size_t kMany = 300;  // more than a receiver's pool holds
    std::vector<char> large[4];
    for (auto& each : large)
        each.assign(kLarge, 'x');
    std::vector<char> out(kSmall, 'y');
    std::vector<std::vector<char>> in(kMany, std::vector<char>(kSmall, 'n'));
    std::vector<Ending> sent(kMany);
    std::vector<Ending> received(kMany);
    for (size_t index = 0; index < kMany; ++index)
        first[0]->send(out.data(), kSmall, 1, static_cast<uint32_t>(index), kPatienceNs, sent[index].done());
    Ending endings[4];
    first[0]->all_reduce(large[0].data(), kLarge, Dtype::kUint8, Reduction::kMax, kPatienceNs, endings[0].done());
    second[1]->all_reduce(large[1].data(), kLarge, Dtype::kUint8, Reduction::kMax, kPatienceNs, endings[1].done());
    second[0]->all_reduce(large[2].data(), kLarge, Dtype::kUint8, Reduction::kMax, kPatienceNs, endings[2].done());
    CHECK(endings[1].wait().empty() && endings[2].wait().empty());
    first[1]->all_reduce(large[3].data(), kLarge, Dtype::kUint8, Reduction::kMax, kPatienceNs, endings[3].done());
    CHECK(endings[0].wait().empty() && endings[3].wait().empty());
    for (size_t index = kMany; index-- > 0;)
        first[1]->receive(in[index].data(), kSmall, 0, static_cast<uint32_t>(index), kPatienceNs, nullptr,
                          received[index].done());
    for (size_t index = 0; index < kMany; ++index) {
        CHECK(received[index].wait().empty() && sent[index].wait().empty());
        CHECK(in[index] == out);
    }
}

// Both directions of one tag, of different sizes; and one size that does not fit, which is named.
void sizes_belong_to_directions(uint64_t) {
    Team team(2);
    const auto groups = team.join(1);
    const size_t bytes[2] = {3 << 20, 5000};
    std::vector<char> out(3 << 20, 'o');
    for (int round = 0; round < 3; ++round) {
        Ending endings[4];
        std::vector<char> in[2];
        for (int rank = 0; rank < 2; ++rank) {
            in[rank].resize(bytes[1 - rank]);
            Group& group = *groups[static_cast<size_t>(rank)];
            group.send(out.data(), bytes[rank], 1 - rank, 5, kPatienceNs, endings[2 * rank].done());
            group.receive(in[rank].data(), in[rank].size(), 1 - rank, 5, kPatienceNs, nullptr,
                          endings[2 * rank + 1].done());
        }
        for (Ending& ending : endings)
            CHECK(ending.wait().empty());
        CHECK(in[0] == std::vector<char>(5000, 'o') && in[1] == out);
    }
    Ending sent;
    Ending received;
    char few[100];
    groups[0]->send(out.data(), out.size(), 1, 6, kPatienceNs, sent.done());
    groups[1]->receive(few, sizeof few, 0, 6, kPatienceNs, nullptr, received.done());
    received.wait();
    CHECK(received.code() == Failure::Code::kDiffers);
    sent.wait();
    CHECK(sent.code() == Failure::Code::kDiffers);
}

void a_lost_process_is_named(uint64_t) {
    Retry retry;
    retry.enabled = false;
    Team team(2, 2, 0, 0, retry);
    const auto groups = team.join(1);
    std::vector<float> data(1 << 20);
    Ending ending;
    groups[0]->all_reduce(data.data(), data.size(), Dtype::kFloat32, Reduction::kSum, 0, ending.done());
    team.engines[1].reset();
    const std::string text = ending.wait();
    CHECK(ending.code() == Failure::Code::kLost);
    CHECK(text.find("all_reduce #0") != std::string::npos && text.find("rank 1 (node1)") != std::string::npos);
}

void strangers_stay_outside(uint64_t) {
    Team team(1);
    const Endpoint there = unpack(team.endpoints[0]);
    Settings settings;
    settings.rails.push_back({"a", "127.0.0.2", ""});
    settings.key = std::string(32, 'x');
    Engine stranger(settings);
    std::vector<std::string> endpoints{team.endpoints[0], stranger.endpoint()};
    bool refused[2] = {};
    std::thread other([&] {
        try {
            team.engines[0]->join(1, "g", endpoints, {0, 1}, 0, std::chrono::milliseconds(300));
        } catch (const Trouble& trouble) {
            refused[0] = std::string(trouble.what()).find("rank 1") != std::string::npos;
        }
    });
    try {
        stranger.join(1, "g", endpoints, {0, 1}, 1, std::chrono::milliseconds(300));
    } catch (const Trouble&) {
        refused[1] = true;
    }
    other.join();
    CHECK(refused[0] && refused[1]);
}

// Against a plain set of numbers.
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
    Silence silence;
    silence.suspect(1000 * kMs);
    CHECK(silence.wants_probe(1000 * kMs));
    silence.probed(1000 * kMs);
    CHECK(!silence.judge(5000 * kMs, 0));           // all were silent
    CHECK(!silence.judge(5000 * kMs, 1010 * kMs));  // the witness answered before it could have come by here
    CHECK(!silence.judge(1090 * kMs, 1080 * kMs));  // too early
    silence.progressed(1095 * kMs);
    CHECK(!silence.judge(1150 * kMs, 1140 * kMs));  // slow, not silent
    CHECK(silence.judge(1300 * kMs, 1290 * kMs));
    CHECK(silence.standing() == Standing::kDead);
}

void rails_pair_by_name_then_network_then_order(uint64_t) {
    Endpoint one;
    Endpoint two;
    one.rails = {{"a", "10.0.0.1", 1, 24}, {"b", "10.0.1.1", 1, 24}, {"x", "10.0.2.1", 1, 24}};
    two.rails = {{"y", "10.0.2.2", 1, 24}, {"b", "10.9.1.1", 1, 24}, {"z", "10.7.0.1", 1, 24}};
    const std::vector<std::pair<size_t, size_t>> expected{{0, 2}, {1, 1}, {2, 0}};
    CHECK(pair_rails(one, two) == expected);
    two.rails = {{"only", "10.8.0.1", 1, 24}};
    CHECK(pair_rails(one, two).size() == 1 && pair_rails(two, one).size() == 1);
}

}  // namespace
}  // namespace taskd::rail::test

int main(int count, char** arguments) {
    using namespace taskd::rail::test;
    const uint64_t seed = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
    const uint64_t seeds = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 3;

    const struct {
        const char* name;
        void (*run)(uint64_t);
        bool has_seed;
    } tests[] = {
        {"arrivals are a set", arrivals_are_a_set, true},
        {"silence needs a witness", silence_needs_a_witness, false},
        {"rails pair by name, then network, then order", rails_pair_by_name_then_network_then_order, false},
        {"strangers stay outside", strangers_stay_outside, false},
        {"sizes belong to directions", sizes_belong_to_directions, false},
        {"a lost process is named", a_lost_process_is_named, false},
        {"groups in opposite order do not wait", groups_in_opposite_order_do_not_wait_for_each_other, false},
        {"aborts are quick and final", aborts_are_quick_and_final, false},
        {"faults change no bit", faults_change_no_bit, true},
    };

    for (const auto& test : tests) {
        for (uint64_t turn = 0; turn < (test.has_seed ? seeds : 1); ++turn)
            test.run(seed + turn);
        std::printf("ok %s\n", test.name);
        std::fflush(stdout);
    }
    std::printf("all %zu passed\n", sizeof tests / sizeof tests[0]);
    return 0;
}
