// Tests of sessions and the engine over real sockets. Some sockets fail on purpose. The build uses sanitizers.
//
// Arguments: a seed, how many seeds to run from there, and which tests: "parts" (within one thread), "short" (those of
// them that take a second or two), "engines" (the others), a part of a name, or none for all.
// tests/rail/test_sessions.py passes them.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "breaches.hpp"
#include "decisions.hpp"
#include "leaving.hpp"
#include "messages.hpp"
#include "orders.hpp"
#include "pure.hpp"
#include "rail/counters.hpp"
#include "rail/io/endpoint.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/pace.hpp"
#include "rails.hpp"
#include "team.hpp"
#include "thrown.hpp"

namespace taskd::rail::test {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

float value(uint64_t seed, int rank, size_t index) {
    return static_cast<float>((index * 31 + static_cast<size_t>(rank) * 17 + seed) % 1009) / 7.0F;
}

// Runs the same operations on all ranks, chosen by the seed. Compares every result with a plain sum in rank order.
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

// Aborts an operation in the middle, again and again, first on one side only. The abort waits for no rank, nothing is
// touched afterwards, and the next epoch works. Its duration depends on the machine, and a benchmark measures it.
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
        std::fill(data[0].begin(), data[0].end(), -7.0F);
        endings[0].wait();
        team.engines[1]->abort(epoch, "the test says so");
        endings[1].wait();
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

// There are so many open receives that the sender has dropped some of their credits.
void no_receive_is_forgotten_for_their_number(uint64_t) {
    constexpr size_t kMany = kCreditsKept + 4096;
    constexpr size_t kSent = 100;
    constexpr size_t kBytes = kEagerBytes + 1;
    std::vector<Ending> received(kMany);
    std::vector<Ending> sent(kSent);
    const std::vector<char> out(kBytes, 'y');
    std::vector<std::vector<char>> in(kSent, std::vector<char>(kBytes, 'n'));
    std::vector<char> rest(kBytes);
    Team team(2);
    const auto groups = team.join(1);
    for (size_t index = 0; index < kMany; ++index)
        groups[1]->receive(index < kSent ? in[index].data() : rest.data(), kBytes, 0, static_cast<uint32_t>(index), 0,
                           nullptr, received[index].done());
    // These messages come after all those credits.
    Ending told;
    Ending heard;
    char word = 'w';
    char taken = 0;
    groups[0]->receive(&taken, 1, 1, 0, kPatienceNs, nullptr, heard.done());
    groups[1]->send(&word, 1, 0, 0, kPatienceNs, told.done());
    CHECK(told.wait().empty() && heard.wait().empty());
    for (size_t index = 0; index < kSent; ++index)
        groups[0]->send(out.data(), kBytes, 1, static_cast<uint32_t>(index), kPatienceNs, sent[index].done());
    for (size_t index = 0; index < kSent; ++index) {
        CHECK(sent[index].wait().empty() && received[index].wait().empty());
        CHECK(in[index] == out);
    }
}

// Full windows in opposite order: no operation may block another one.
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

// The two directions of one tag have different sizes. A size that does not fit is reported as a difference.
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
    // Whether the receive or the send comes first.
    for (const bool receives_first : {false, true}) {
        Ending sent;
        Ending received;
        Ending between[2];
        std::vector<char> few(200'000);
        const auto receive = [&] {
            groups[1]->receive(few.data(), few.size(), 0, 6, kPatienceNs, nullptr, received.done());
        };
        if (receives_first) {
            receive();
            for (int rank = 0; rank < 2; ++rank)
                groups[static_cast<size_t>(rank)]->barrier(kPatienceNs, between[rank].done());
            CHECK(between[0].wait().empty() && between[1].wait().empty());
        }
        groups[0]->send(out.data(), out.size(), 1, 6, kPatienceNs, sent.done());
        if (!receives_first)
            receive();
        received.wait();
        CHECK(received.code() == Failure::Code::kDiffers);
        sent.wait();
        CHECK(sent.code() == Failure::Code::kDiffers);
    }
}

void a_lost_process_is_named(uint64_t) {
    Retry retry;
    retry.enabled = false;
    Team team(2, 2, 0, 0, retry);
    const auto groups = team.join(1);
    std::vector<float> data(1 << 20);
    Ending ending;
    groups[0]->all_reduce(data.data(), data.size(), Dtype::kFloat32, Reduction::kSum, 0, ending.done());
    Ending message;
    char few[8];
    groups[0]->receive(few, sizeof few, 1, 3, 0, nullptr, message.done());
    team.engines[1].reset();
    const std::string text = ending.wait();
    CHECK(ending.code() == Failure::Code::kLost);
    CHECK(text.find("all_reduce #0") != std::string::npos && text.find("rank 1 (node1)") != std::string::npos);
    // The error shows no number: nobody counts the messages between two ranks.
    CHECK(message.wait().find('#') == std::string::npos && message.code() == Failure::Code::kLost);
}

// A rank waits for a member that has ended another operation under the same number. The rank is told, and does not wait
// in vain.
void an_operation_that_has_ended_is_still_compared(uint64_t) {
    Team team(2);
    const auto groups = team.join(1);
    char few[100] = {};
    Ending ended;
    groups[1]->broadcast(few, sizeof few, 0, 20 * kMillisecondNs, ended.done());
    ended.wait();
    CHECK(ended.code() == Failure::Code::kTimeout);
    Ending waiting;
    groups[0]->barrier(kPatienceNs, waiting.done());
    const std::string text = waiting.wait();
    CHECK(waiting.code() == Failure::Code::kDiffers && text.find("broadcast") != std::string::npos);
}

// What other processes read about a rail: found or named, and that it has to prove itself again after an order.
void counters_follow_orders(uint64_t) {
    Settings settings;
    settings.rails.push_back({"a", "127.0.0.2", "", false});
    settings.key = std::string(32, 'k');
    Engine one(settings);
    Engine two(settings);
    const std::vector<std::string> endpoints{one.endpoint(), two.endpoint()};
    std::shared_ptr<Group> groups[2];
    std::thread other(
        [&] { as_rank(1, [&] { groups[1] = two.join(1, "g", endpoints, {0, 1}, 1, taskd::test::patience()); }); });
    as_rank(0, [&] { groups[0] = one.join(1, "g", endpoints, {0, 1}, 0, taskd::test::patience()); });
    other.join();
    Ending endings[2];
    for (int rank = 0; rank < 2; ++rank)
        groups[rank]->barrier(kPatienceNs, endings[rank].done());
    CHECK(endings[0].wait().empty() && endings[1].wait().empty());
    const CountersReader reader(one.counters_fd());
    const CounterView before = reader.read().at(0);
    CHECK(!before.expected && before.was_up && before.bytes_before == 0);
    one.set_rail("a", false);
    Ending again[2];
    for (int rank = 0; rank < 2; ++rank)
        groups[rank]->send(endpoints[0].data(), 10, 1 - rank, 1, kPatienceNs, again[rank].done());
    char taken[2][10];
    Ending received[2];
    for (int rank = 0; rank < 2; ++rank)
        groups[rank]->receive(taken[rank], 10, 1 - rank, 1, kPatienceNs, nullptr, received[rank].done());
    CHECK(received[0].wait().empty() && received[1].wait().empty());
    one.set_rail("a", true);
    const CounterView after = reader.read().at(0);
    CHECK(after.bytes_before >= 20 && after.bytes_before <= after.bytes_out + after.bytes_in);
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

}  // namespace
}  // namespace taskd::rail::test

int main(int count, char** arguments) {
    using namespace taskd::rail::test;
    const uint64_t seed = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
    const uint64_t seeds = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 3;
    const std::string which = count > 3 ? arguments[3] : "";

    struct Test {
        const char* name;
        void (*run)(uint64_t);
        bool has_seed;
    };

    const std::vector<Test> of_parts = {
        {"arrivals are a set", arrivals_are_a_set, true},
        {"silence needs a witness", silence_needs_a_witness, false},
        {"a path is in one state", a_path_is_in_one_state, false},
        {"a late path answers for what it carried", a_late_path_answers_for_what_it_carried, false},
        {"the scheduler takes good paths first", the_scheduler_takes_good_paths_first, false},
        {"the scheduler fills paths by what they deliver", the_scheduler_fills_paths_by_what_they_deliver, false},
        {"small frames take turns", small_frames_take_turns, false},
        {"a loss is one of all connections", a_loss_is_one_of_all_connections, false},
        {"a loss is borne within limits", a_loss_is_borne_within_limits, false},
        {"dials pause longer and longer", dials_pause_longer_and_longer, false},
        {"probes measure what was before them", probes_measure_what_was_before_them, false},
        {"a life only moves forward", a_life_only_moves_forward, false},
        {"what has come is said in time", what_has_come_is_said_in_time, false},
        {"pools are bounded together", pools_are_bounded_together, false},
        {"rails pair by network, then name, then order", rails_pair_by_network_then_name_then_order, false},
        {"rails that share a processor become equal", rails_that_share_a_processor_become_equal, false},
        {"a silent rail costs milliseconds", a_silent_rail_costs_milliseconds, false},
        {"a stopped process costs no rail", a_stopped_process_costs_no_rail, false},
        {"a starved process costs no rail", a_starved_process_costs_no_rail, true},
        {"who has ended is not waited for", who_has_ended_is_not_waited_for, false},
        {"who lives after all loses nothing", who_lives_after_all_loses_nothing, false},
        {"silence that is over counts no more", silence_that_is_over_counts_no_more, false},
        {"a rail out of use at one end is left by both", a_rail_out_of_use_at_one_end_is_left_by_both, false},
        {"a rail put back is proved by the next bytes", a_rail_that_is_put_back_is_proved_by_the_next_bytes, false},
        {"a dropped credit is asked for again", a_dropped_credit_is_asked_for_again, false},
        {"what is acknowledged too early is read no more", what_is_acknowledged_too_early_is_read_no_more, false},
        {"a small message keeps its size", a_small_message_keeps_its_size, false},
        {"a small message comes once", a_small_message_comes_once, false},
        {"a copy of a small message needs no room", a_copy_of_a_small_message_needs_no_room, false},
        {"a large message has no part twice", a_large_message_has_no_part_twice, false},
        {"memory that goes is written no more", memory_that_goes_is_written_no_more, false},
    };
    const std::vector<Test> lasting = {
        {"a rail that returns has its share again", a_rail_that_returns_has_its_share_again, false},
        {"a rail that is fast again has its share again", a_rail_that_is_fast_again_has_its_share_again, false},
        {"small messages use every rail", small_messages_use_every_rail, false},
        {"a slow rail gets what it delivers", a_slow_rail_gets_what_it_delivers_and_delays_nothing, false},
        {"and so at any moment", a_rail_that_is_silent_at_any_moment_costs_milliseconds, false},
        {"the other side is told of a lost rail", the_other_side_is_told_of_a_lost_rail, false},
        {"a rail that nobody hears is taken down", a_rail_that_nobody_hears_is_taken_down, false},
        {"silence on all rails is held for a while", silence_on_all_rails_is_held_for_as_long_as_may_be, false},
    };
    const std::vector<Test> of_engines = {
        {"strangers stay outside", strangers_stay_outside, false},
        {"sizes belong to directions", sizes_belong_to_directions, false},
        {"from anybody everything comes", from_anybody_everything_comes, true},
        {"a message may be shorter than its place", a_message_may_be_shorter_than_its_place, true},
        {"a lost process is named", a_lost_process_is_named, false},
        {"an operation that has ended is still compared", an_operation_that_has_ended_is_still_compared, false},
        {"counters follow orders", counters_follow_orders, false},
        {"no receive is forgotten for their number", no_receive_is_forgotten_for_their_number, false},
        {"groups in opposite order do not wait", groups_in_opposite_order_do_not_wait_for_each_other, false},
        {"aborts are quick and final", aborts_are_quick_and_final, false},
        {"a listener without descriptors goes on later", a_listener_without_descriptors_goes_on_later, false},
        {"what a member sent outlives it", what_a_member_sent_outlives_it, false},
        {"a member that has gone on breaks no making of groups", a_member_that_has_gone_on_breaks_no_making_of_groups,
         false},
        {"only what can never come fails", only_what_can_never_come_fails, false},
        {"what is thrown in a call costs an epoch", what_is_thrown_in_a_call_costs_an_epoch, false},
        {"what is thrown on the thread costs an epoch", what_is_thrown_on_the_thread_costs_an_epoch, false},
        {"memory that runs out costs an epoch", memory_that_runs_out_costs_an_epoch, false},
        {"an address that nobody knows costs a rail", an_address_that_nobody_knows_costs_a_rail, false},
        {"who leaves in good order fails nobody", who_leaves_in_good_order_fails_nobody, true},
        {"faults change no bit", faults_change_no_bit, true},
    };

    const bool is_short = which == "short", is_parts = is_short || which == "parts", is_engines = which == "engines";
    std::vector<Test> tests = is_engines ? std::vector<Test>{} : of_parts;
    if (!is_short && !is_engines)
        tests.insert(tests.end(), lasting.begin(), lasting.end());
    if (!is_parts)
        tests.insert(tests.end(), of_engines.begin(), of_engines.end());
    if (!is_parts && !is_engines) {
        const auto is_other = [&](const Test& test) { return std::string(test.name).find(which) == std::string::npos; };
        tests.erase(std::remove_if(tests.begin(), tests.end(), is_other), tests.end());
    }
    for (const Test& test : tests) {
        g_test = test.name;
        for (uint64_t turn = 0; turn < (test.has_seed ? seeds : 1); ++turn)
            as_rank(0, [&] { test.run(seed + turn); });
        std::printf("ok %s\n", test.name);
        std::fflush(stdout);
    }
    std::printf("all %zu passed\n", tests.size());
    return 0;
}
