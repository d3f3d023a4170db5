// Tests of the sums of several processes' counters.
#include "rail/tally.hpp"

#include <cerrno>

#include "check.hpp"

namespace taskd::rail::test {
namespace {

constexpr uint64_t kMuch = 1000;

RailSum sum_of(Tally& tally, const std::string& rail, const std::string& node) {
    for (const RailSum& sum : tally.read()) {
        if (sum.rail == rail && sum.node == node)
            return sum;
    }
    CHECK(!"there is such a sum");
    return {};
}

void ranks_are_summed_by_node() {
    Counters one(8);
    Counters two(8);
    Tally tally(kMuch);
    tally.add(one.fd());
    tally.add(two.fd());
    CHECK(tally.read().empty());
    CounterRecord& first = one.open("a", 4, "far", 1, 10);
    CounterRecord& second = two.open("a", 4, "far", 1, 10);
    one.open("b", 4, "far", 1, 10);
    one.open("a", 1, "near", 1, 10);
    set_state(first, RailState::kUp, 20);
    set_state(second, RailState::kUp, 30);
    add(first.bytes_out, 5);
    add(second.bytes_out, 6);
    first.round_trip_ns = 100;
    second.round_trip_ns = 200;
    const RailSum sum = sum_of(tally, "a", "far");
    CHECK(sum.pairs == 2 && sum.pairs_up == 2 && sum.pairs_moved == 2 && sum.bytes_out == 11);
    CHECK(sum.state == RailState::kUp && sum.since_ns == 30 && sum.round_trip_ns == 200);
    CHECK(tally.read().size() == 3 && sum_of(tally, "b", "far").state == RailState::kProbing);
}

void the_worst_pair_speaks() {
    Counters counters(8);
    Tally tally(kMuch);
    tally.add(counters.fd());
    CounterRecord& first = counters.open("a", 1, "n", 1, 10);
    CounterRecord& second = counters.open("a", 2, "n", 1, 10);
    set_state(first, RailState::kUp, 20);
    set_state(second, RailState::kUp, 21);
    set_state(first, RailState::kSuspect, 30);
    CHECK(sum_of(tally, "a", "n").state == RailState::kSuspect && sum_of(tally, "a", "n").since_ns == 30);
    set_state(second, RailState::kDown, 40);
    set_error(second, ETIMEDOUT, 40);
    set_error(first, ECONNRESET, 39);
    RailSum sum = sum_of(tally, "a", "n");
    CHECK(sum.state == RailState::kDown && sum.since_ns == 40 && sum.downs == 1 && sum.pairs_up == 0);
    CHECK(sum.last_error == ETIMEDOUT);
    set_state(first, RailState::kUp, 50);
    set_state(second, RailState::kUp, 60);
    add(first.bytes_in, 1);
    sum = sum_of(tally, "a", "n");
    CHECK(sum.state == RailState::kUp && sum.since_ns == 60 && sum.pairs_up == 2 && sum.pairs_moved == 1);
    prove_anew(first);
    CHECK(sum_of(tally, "a", "n").pairs_moved == 0 && sum_of(tally, "a", "n").since_ns == 60);
    add(second.bytes_out, 1);
    CHECK(sum_of(tally, "a", "n").pairs_moved == 1);
    for (const RailState state : {RailState::kSuspect, RailState::kUp})
        set_state(second, state, 70);
    CHECK(sum_of(tally, "a", "n").pairs_moved == 1);  // this is still the same connection
    for (const RailState state : {RailState::kDown, RailState::kUp})
        set_state(second, state, 80);
    CHECK(sum_of(tally, "a", "n").pairs_moved == 0);
}

void what_was_found_and_never_answered_is_no_pair() {
    Counters counters(8);
    Tally tally(kMuch);
    tally.add(counters.fd());
    CounterRecord& record = counters.open("a", 1, "n", 1, 10, false);
    CHECK(sum_of(tally, "a", "n").pairs == 0);
    set_state(record, RailState::kUp, 20);
    CHECK(sum_of(tally, "a", "n").pairs == 1);
    set_state(record, RailState::kDown, 30);
    counters.open("a", 1, "n", 2, 40, false);  // the next epoch: the rail is known to reach this node
    CHECK(sum_of(tally, "a", "n").pairs == 1 && sum_of(tally, "a", "n").pairs_up == 0);
}

void sums_outlive_their_processes() {
    Tally tally(kMuch);
    {
        Counters first(8);
        const int64_t number = tally.add(first.fd());
        CounterRecord& record = first.open("a", 1, "n", 1, 10);
        add(record.bytes_out, 100);
        CHECK(sum_of(tally, "a", "n").bytes_out == 100);
        add(record.bytes_out, 1);
        tally.remove(number);
        tally.remove(number);
    }
    RailSum sum = sum_of(tally, "a", "n");
    CHECK(sum.bytes_out == 101 && sum.pairs == 0);
    Counters second(8);
    tally.add(second.fd());
    add(second.open("a", 1, "n", 2, 10).bytes_out, 10);
    sum = sum_of(tally, "a", "n");
    CHECK(sum.bytes_out == 111 && sum.pairs == 1);
}

void a_record_that_changes_hands_loses_nothing() {
    Counters counters(1);
    Tally tally(kMuch);
    tally.add(counters.fd());
    CounterRecord& first = counters.open("a", 1, "n", 1, 10);
    add(first.bytes_out, 100);
    CHECK(sum_of(tally, "a", "n").bytes_out == 100);
    counters.close(first, 1);
    add(counters.open("a", 2, "n", 1, 20).bytes_out, 30);
    CHECK(sum_of(tally, "a", "n").bytes_out == 130);
    CHECK(sum_of(tally, "a", "n").pairs == 1);
}

void a_pair_that_sends_over_others_alone_starves_a_rail() {
    Counters counters(8);
    Tally tally(kMuch);
    tally.add(counters.fd());
    CounterRecord& rail = counters.open("a", 1, "n", 1, 10);
    CounterRecord& other = counters.open("b", 1, "n", 1, 10);
    CounterRecord& idle = counters.open("a", 2, "n", 1, 10);
    CounterRecord& elsewhere = counters.open("b", 3, "n", 1, 10);
    for (CounterRecord* const record : {&rail, &other, &idle, &elsewhere})
        set_state(*record, RailState::kUp, 20);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0);
    add(other.bytes_out, kMuch / 2);
    add(other.bytes_in, kMuch / 2 - 1);
    add(elsewhere.bytes_out, 2 * kMuch);  // between other ranks, which do not use this rail
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0);
    add(other.bytes_in, 1);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 1 && sum_of(tally, "a", "n").pairs == 2);
    prove_anew(rail);  // put back: what other rails carried before says nothing
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0);
    add(other.bytes_out, kMuch);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 1);
    add(rail.bytes_in, 1);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0 && sum_of(tally, "a", "n").pairs_moved == 1);
    set_state(rail, RailState::kDown, 30);
    add(other.bytes_out, kMuch);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0);  // a rail that is not connected owes nothing
    set_state(rail, RailState::kUp, 40);
    CHECK(sum_of(tally, "a", "n").pairs_starved == 0);
    Tally late(kMuch);
    late.add(counters.fd());  // an agent that has just been started knows nothing of the past
    CHECK(sum_of(late, "a", "n").pairs_starved == 0);
    add(other.bytes_out, kMuch);
    CHECK(sum_of(late, "a", "n").pairs_starved == 1);
    counters.close(rail, 1);
    CHECK(sum_of(late, "a", "n").pairs_starved == 0);
}

}  // namespace

std::vector<Test> tally_tests() {
    return {{"ranks are summed by node", ranks_are_summed_by_node},
            {"the worst pair speaks", the_worst_pair_speaks},
            {"what was found and never answered is no pair", what_was_found_and_never_answered_is_no_pair},
            {"sums outlive their processes", sums_outlive_their_processes},
            {"a record that changes hands loses nothing", a_record_that_changes_hands_loses_nothing},
            {"a pair that sends over others alone starves a rail", a_pair_that_sends_over_others_alone_starves_a_rail}};
}

}  // namespace taskd::rail::test
