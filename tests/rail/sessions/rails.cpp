// Tests of the promises about rails that are slow, silent, lost or back: shares and delays, in virtual time.
//
// Does not: use a real clock or a real socket (main.cpp and test_namespaces.py do).
#include "rails.hpp"

#include <random>

#include "virtual.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kMs = kMillisecondNs;
constexpr double kRate = 100e6;
constexpr int64_t kSoonNs = 1000 * kMs;  // a rail has its share again within this time
const std::vector<size_t> kLarge{1 << 20, 1 << 20, 1 << 20, 1 << 20};
const std::vector<size_t> kSmall{8 << 10, 32 << 10, 16 << 10};

void begin(World& world, const std::vector<size_t>& messages) {
    for (auto& side : world.sides)
        side->messages = messages;
    world.run(500 * kMs);
}

// Returns the longest time that an operation of either side took after this moment.
int64_t longest_since(World& world, int64_t since_ns) {
    int64_t longest = 0;
    for (auto& side : world.sides) {
        for (const auto& [begin, end] : side->operations)
            longest = end <= since_ns ? longest : std::max(longest, end - std::max(begin, since_ns));
        longest = std::max(longest, world.now_ns - std::max(side->began_ns(), since_ns));
    }
    return longest;
}

int64_t typical(World& world) {
    std::vector<int64_t> times;
    for (const auto& [begin, end] : world.sides[0]->operations)
        times.push_back(end - begin);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class Counter>
uint64_t total(World& world, Counter counter) {
    uint64_t count = 0;
    for (auto& side : world.sides) {
        for (const Path& path : side->session().paths())
            count += (path.record.*counter).load();
    }
    return count;
}

uint64_t downs(World& world) {
    return total(world, &CounterRecord::downs);
}

uint64_t hedged(World& world) {
    return total(world, &CounterRecord::hedged);
}

double share_soon(World& world, size_t rail) {
    world.run(kSoonNs);
    world.share(rail);
    world.run(500 * kMs);
    return world.share(rail);
}

void lose_and_return(World& world, size_t rail) {
    world.rails[rail].is_there = false;
    world.reset(rail);
    world.run(400 * kMs);
    world.share(rail);
    world.rails[rail].is_there = true;
}

}  // namespace

void a_rail_that_returns_has_its_share_again(uint64_t) {
    World world;
    begin(world, kLarge);
    for (size_t rail = 0; rail < 2; ++rail) {
        lose_and_return(world, rail);
        const double share = share_soon(world, rail);
        std::printf("    share of rail %zu after its return: %.2f\n", rail, share);
        CHECK(share > 0.45 && share < 0.55);
    }
}

void a_rail_that_is_fast_again_has_its_share_again(uint64_t) {
    for (const auto& messages : {kLarge, std::vector<size_t>{200 << 10}, kSmall}) {
        World world;
        begin(world, messages);
        world.set_rate(0, kRate / 100);
        world.run(2000 * kMs);
        world.set_rate(0, kRate);
        const double share = share_soon(world, 0);
        std::printf("    share of a rail that was slow: %.2f\n", share);
        CHECK(share > 0.25 && share < 0.75);
    }
}

// Each rail delivers what it is given, so only an equal assignment can make the rails equal.
void rails_that_share_a_processor_become_equal(uint64_t) {
    World world;
    for (VirtualRail& rail : world.rails)
        rail.ways[0].rate = rail.ways[1].rate = 20 * kRate;
    for (auto& side : world.sides)
        side->bytes_per_second = kRate;
    begin(world, kLarge);
    lose_and_return(world, 0);
    const double share = share_soon(world, 0);
    std::printf("    share of a rail that shares a processor: %.2f\n", share);
    CHECK(share > 0.3 && share < 0.7);
}

void small_messages_use_every_rail(uint64_t) {
    World world;
    begin(world, kSmall);
    for (size_t rail = 0; rail < 2; ++rail) {
        lose_and_return(world, rail);
        const double share = share_soon(world, rail);
        std::printf("    share of small messages: %.2f\n", share);
        CHECK(share > 0.25 && share < 0.75);
    }
    // A rail with a little more latency is used, too. A rail with much more latency is not used while the other is
    // there.
    world.rails[0].ways[0].latency_ns = world.rails[0].ways[1].latency_ns = 5 * kMs;
    CHECK(share_soon(world, 0) < 0.02);
    world.rails[0].ways[0].latency_ns = world.rails[0].ways[1].latency_ns = 60'000;
    CHECK(share_soon(world, 0) > 0.25);
}

void a_slow_rail_gets_what_it_delivers_and_delays_nothing(uint64_t) {
    for (const auto& messages : {kLarge, std::vector<size_t>{200 << 10}, kSmall}) {
        World alone(1);
        begin(alone, messages);
        World world;
        begin(world, messages);
        world.set_rate(0, kRate / 100);
        world.run(300 * kMs);
        world.share(0);
        const int64_t since = world.now_ns;
        for (auto& side : world.sides)
            side->operations.clear();
        world.run(3000 * kMs);
        const double share = world.share(0);
        std::printf("    share of a slow rail %.4f; operations take %.2f ms, at most %.2f, over the good one %.2f\n",
                    share, static_cast<double>(typical(world)) / kMs,
                    static_cast<double>(longest_since(world, since)) / kMs, static_cast<double>(typical(alone)) / kMs);
        CHECK(share < 0.03);
        CHECK(messages != kLarge || share > 0.003);
        CHECK(typical(world) < typical(alone) * 11 / 10);
        CHECK(longest_since(world, since) < typical(alone) + 10 * kMs);
        CHECK(downs(world) == 0);  // slow is not dead
    }
}

void a_silent_rail_costs_milliseconds(uint64_t) {
    for (const auto& messages : {kLarge, kSmall}) {
        for (const bool both : {true, false}) {
            World world;
            begin(world, messages);
            const int64_t before = typical(world);
            const int64_t since = world.now_ns;
            world.rails[1].is_there = false;
            world.rails[1].ways[0].rate = 0;
            if (both)
                world.rails[1].ways[1].rate = 0;
            world.run(1000 * kMs);
            std::printf("    a silent rail costs %.2f ms, an operation %.2f\n",
                        static_cast<double>(longest_since(world, since)) / kMs, static_cast<double>(before) / kMs);
            CHECK(longest_since(world, since) < 2 * before + 15 * kMs);
            CHECK(downs(world) > 0);
            world.set_rate(1, kRate);
            world.rails[1].is_there = true;
            CHECK(share_soon(world, 1) > 0.25);
        }
    }
}

// This holds whatever was on its way. It may be an acknowledgement, which the other side does not repeat unasked.
void a_rail_that_is_silent_at_any_moment_costs_milliseconds(uint64_t) {
    for (int turn = 0; turn < 60; ++turn) {
        World world;
        for (auto& side : world.sides)
            side->messages = turn % 2 == 0 ? kSmall : std::vector<size_t>{200 << 10};
        world.run(50 * kMs + turn * kMs * 3 / 20);
        const int64_t since = world.now_ns;
        world.rails[turn % 4 / 2].is_there = false;
        world.set_rate(static_cast<size_t>(turn % 4 / 2), 0);
        world.run(300 * kMs);
        CHECK(longest_since(world, since) < 40 * kMs);
    }
}

void the_other_side_is_told_of_a_lost_rail(uint64_t) {
    for (int turn = 0; turn < 16; ++turn) {
        const int side = turn % 2;
        World world;
        begin(world, turn % 4 < 2 ? kLarge : kSmall);
        world.run(turn * kMs * 3 / 4);
        const int64_t before = typical(world);
        const int64_t since = world.now_ns;
        world.sockets.is_unnoticed = true;
        world.rails[0].is_there = false;
        world.sides[side]->session().set_interface(0, false, "its cable was pulled");
        world.run(5 * kMs);  // the message follows what is on its way
        CHECK(!world.sides[0]->session().paths()[0].link() && !world.sides[1]->session().paths()[0].link());
        CHECK(world.sides[0]->session().paths()[1].link() && world.sides[1]->session().paths()[1].link());
        world.run(100 * kMs);
        CHECK(longest_since(world, since) < 3 * before);
        world.rails[0].is_there = true;
        world.sides[side]->session().set_interface(0, true, "its cable is back");
        CHECK(turn > 3 || share_soon(world, 0) > 0.3);
    }
}

// A stopped process answers on no rail. No rail is taken down, and what was sent is sent once.
void a_stopped_process_costs_no_rail(uint64_t) {
    for (const auto& messages : {kLarge, kSmall}) {
        World world;
        begin(world, messages);
        for (int turn = 1; turn <= 40; ++turn) {
            world.sides[turn % 2]->stopped_until_ns = world.now_ns + turn % 10 * 2 * kMs;
            world.run(25 * kMs);
        }
        std::printf("    sent twice because of a stopped process: %lu\n", hedged(world));
        CHECK(hedged(world) < 80);  // at most two for each pause
        const uint64_t before = hedged(world);
        world.sides[1]->stopped_until_ns = world.now_ns + 3000 * kMs;
        world.run(4000 * kMs);
        CHECK(downs(world) == 0);
        CHECK(hedged(world) < before + 40);
    }
}

// A process that seldom gets a processor may answer on one rail long before it reads what another rail brought. This is
// not the other rail's fault, and sending the bytes again would only be more work.
void a_starved_process_costs_no_rail(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one_of = [&](std::vector<double> choices) { return choices[random() % choices.size()]; };
    World world;
    const double rate = one_of({kRate / 2, kRate, 5 * kRate, 30 * kRate});
    const auto longest_ns = static_cast<int64_t>(one_of({20, 60, 150, 400}) * static_cast<double>(kMs));
    std::vector<size_t> messages(1 + random() % 8);
    for (size_t& bytes : messages)
        bytes = static_cast<size_t>(one_of({1 << 10, 8 << 10, 60 << 10, 200 << 10, 1 << 20, 4 << 20}));
    world.set_rate(0, rate);
    world.set_rate(1, rate);
    const auto turn = static_cast<size_t>(one_of({16 << 10, 1 << 20}));
    for (auto& side : world.sides) {
        side->turn_bytes = turn;
        side->bytes_per_second = one_of({kRate, 4 * kRate, 20 * kRate, kEndless});
        side->messages = messages;
    }
    int64_t stops_at[2] = {world.now_ns, world.now_ns};
    for (const int64_t until = world.now_ns + 4000 * kMs; world.now_ns < until; world.run(kMs / 5)) {
        for (int side = 0; side < 2; ++side) {
            if (world.now_ns < stops_at[side])
                continue;
            const bool is_short = random() % 4 == 0;
            const auto pause = static_cast<int64_t>(random() % static_cast<uint64_t>(is_short ? 3 * kMs : longest_ns));
            world.sides[side]->stopped_until_ns = world.now_ns + pause;
            stops_at[side] = world.now_ns + pause + static_cast<int64_t>(kMs / 5 + random() % (8 * kMs));
        }
    }
    std::printf("    sent twice because of a starved process: %lu\n", hedged(world));
    CHECK(downs(world) == 0);
    CHECK(hedged(world) < 100);  // earlier it was more than a thousand
}

// Something on the way takes and acknowledges every byte, but forwards none.
void a_rail_that_nobody_hears_is_taken_down(uint64_t) {
    for (const auto& messages : {kLarge, kSmall}) {
        World world;
        begin(world, messages);
        const int64_t before = typical(world);
        const int64_t since = world.now_ns;
        world.sockets.unheard = 0;
        world.rails[0].is_there = false;
        world.run(4000 * kMs);
        CHECK(downs(world) > 0);
        CHECK(longest_since(world, since) < 2 * before + 1100 * kMs);
        world.sockets.unheard = SIZE_MAX;
        world.rails[0].is_there = true;
        CHECK(share_soon(world, 0) > 0.25);
    }
}

// The users' time limit counts from the first byte that did not come through, whatever TCP still tries.
void silence_on_all_rails_is_held_for_as_long_as_may_be(uint64_t) {
    const Retry retry;
    const int64_t limit_ns = std::chrono::nanoseconds(retry.hold + retry.count * retry.interval).count();
    for (const size_t rails : {1, 2}) {
        for (const bool comes_back : {true, false}) {
            World world(rails);
            begin(world, kLarge);
            const auto set = [&](bool is_there) {
                for (size_t rail = 0; rail < rails; ++rail) {
                    world.rails[rail].is_there = is_there;
                    world.set_rate(rail, is_there ? kRate : 0);
                }
            };
            set(false);
            world.sockets.is_unnoticed = true;
            for (auto& side : world.sides)
                side->may_fail = !comes_back;
            world.run(500 * kMs);
            for (const Path& path : world.sides[0]->session().paths())
                CHECK(path.record.state.load() == static_cast<uint64_t>(RailState::kUp));  // no rail is worse
            world.run(limit_ns - 800 * kMs);
            CHECK(!world.sides[0]->session().life().is_over() && !world.sides[1]->session().life().is_over());
            if (comes_back) {
                set(true);
                const size_t before = world.sides[0]->operations.size();
                world.run(600 * kMs);
                CHECK(world.sides[0]->operations.size() > before + 5);
            } else {
                world.run(500 * kMs);
                for (auto& side : world.sides)
                    CHECK(side->session().life().failure().find("no rail came back within") != std::string::npos);
            }
        }
    }
}

// A process ends without a farewell, and its node says so: before the connections are gone, after that, or while its
// host falls silent. One side dials, the other one only waits.
void who_has_ended_is_not_waited_for(uint64_t) {
    enum class Word { kBefore, kAfter, kInSilence };
    for (const int side : {0, 1}) {
        for (const Word word : {Word::kBefore, Word::kAfter, Word::kInSilence}) {
            World world;
            begin(world, kLarge);
            Session& mine = world.sides[side]->session();
            world.sides[1 - side]->stopped_until_ns = INT64_MAX;
            for (auto& each : world.sides)
                each->may_fail = true;
            if (word != Word::kAfter)
                mine.hear_of_end("its process has ended");
            world.run(300 * kMs);
            CHECK(!mine.life().is_over());  // what it sent would still arrive
            for (size_t rail = 0; rail < 2; ++rail) {
                world.rails[rail].is_there = false;
                if (word == Word::kInSilence)
                    world.set_rate(rail, 0);
                else
                    world.reset(rail);
            }
            world.run(word == Word::kInSilence ? 7000 * kMs : 50 * kMs);
            if (word == Word::kAfter) {
                CHECK(!mine.life().is_over());  // its rails may come back
                mine.hear_of_end("its process has ended");
            }
            CHECK(mine.life().peer_has_left() && mine.life().failure() == "it has left: its process has ended");
            for (const Path& path : mine.paths())
                CHECK(path.record.used.load() == 0);  // no rail is lost
        }
    }
}

// The word was wrong, or about another process.
void who_lives_after_all_loses_nothing(uint64_t) {
    World world;
    begin(world, kLarge);
    world.sides[0]->session().hear_of_end("its process has ended");
    world.sides[1]->session().hear_of_end("its process has ended");
    world.reset(0);
    world.run(300 * kMs);
    const size_t before = world.sides[0]->operations.size();
    world.reset(1);
    world.run(300 * kMs);
    CHECK(world.sides[0]->operations.size() > before + 5);
}

// Only the side that does not dial has seen the silence, and nothing is sent afterwards.
void silence_that_is_over_counts_no_more(uint64_t) {
    World world(1);
    begin(world, kSmall);
    world.set_rate(0, 0);
    world.sides[0]->stopped_until_ns = world.now_ns + 1500 * kMs;
    world.run(1500 * kMs);
    world.set_rate(0, kRate);
    for (auto& side : world.sides)
        side->messages.clear();
    world.run(10'000 * kMs);
    CHECK(world.sides[0]->session().traffic().outbox().idle() && world.sides[1]->session().traffic().outbox().idle());
    CHECK(!world.sides[0]->session().life().is_over() && !world.sides[1]->session().life().is_over());
}

}  // namespace taskd::rail::test
