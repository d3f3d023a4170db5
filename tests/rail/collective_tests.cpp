// Compares collectives with their expected results: in random order, alone and many at a time, over several groups.
#include <algorithm>

#include "cases.hpp"
#include "parts/check.hpp"
#include "suite.hpp"
#include "world.hpp"

namespace taskd::rail::test {
namespace {

constexpr size_t kMostBytes = 1500000;   // of all ranks together
constexpr size_t kManyChunks = 2500000;  // of two or three ranks: more chunks than may be staged at a time

std::vector<int> shuffled(std::mt19937& random, int size) {
    std::vector<int> members = first(size);
    std::shuffle(members.begin(), members.end(), random);
    return members;
}

// Runs one operation after the other. The ranks begin in any order while messages are under way.
void every_operation_alone(unsigned seed) {
    std::mt19937 random(seed);
    for (const int size : {1, 2, 3, 4, 8, 16}) {
        const std::unique_ptr<World> world = fake_world(seed);
        const auto groups = world->group("g", first(size));
        for (int round = 0; round < 30; ++round) {
            Case one(random, size, size <= 3 && round % 3 == 0 ? kManyChunks : kMostBytes / static_cast<size_t>(size));
            Outcomes outcomes;
            for (const int member : shuffled(random, size)) {
                one.start(*groups[static_cast<size_t>(member)], outcomes.add());
                world->stir();
            }
            world->finish(outcomes);
            outcomes.check_success();
            one.check();
        }
        for (const auto& group : groups)
            CHECK(group->unfinished() == 0);
    }
}

void every_operation() {
    for (unsigned seed = 0; seed < 3; ++seed)
        every_operation_alone(seed);
}

// Each rank goes through the groups in its own order. Only within a group do all ranks use the same order.
void many_at_once_over_groups_in_opposite_order() {
    for (unsigned seed = 100; seed < 104; ++seed) {
        std::mt19937 random(seed);
        constexpr int kSize = 4;
        constexpr size_t kGroups = 3;
        constexpr size_t kRounds = 8;
        const std::unique_ptr<World> world = fake_world(seed);
        std::vector<std::vector<std::shared_ptr<Group>>> groups;
        std::vector<std::vector<std::unique_ptr<Case>>> cases(kGroups);
        for (size_t index = 0; index < kGroups; ++index) {
            groups.push_back(world->group("g" + std::to_string(index), first(kSize)));
            for (size_t round = 0; round < kRounds; ++round)
                cases[index].push_back(std::make_unique<Case>(random, kSize, kMostBytes / 4));
        }
        Outcomes outcomes;
        for (const int member : shuffled(random, kSize)) {
            std::vector<size_t> next(kGroups, 0);
            for (size_t left = kGroups * kRounds; left > 0; --left) {
                size_t index = random() % kGroups;
                while (next[index] == kRounds)
                    index = (index + 1) % kGroups;
                cases[index][next[index]++]->start(*groups[index][static_cast<size_t>(member)], outcomes.add());
            }
            world->stir();
        }
        world->finish(outcomes);
        outcomes.check_success();
        for (const auto& list : cases)
            for (const auto& one : list)
                one->check();
    }
}

// Reduces the same elements in one buffer and in several. No bit of the results may differ.
void buckets_change_no_bit() {
    std::mt19937 random(7);
    constexpr size_t kCount = 150001;
    for (const int size : {2, 5}) {
        const std::unique_ptr<World> world = fake_world(7);
        const auto groups = world->group("g", first(size));
        std::vector<Bytes> whole;
        for (int member = 0; member < size; ++member)
            whole.push_back(elements(random, Dtype::kBfloat16, kCount));
        std::vector<Bytes> parts = whole;
        Outcomes outcomes;
        for (int member = 0; member < size; ++member) {
            const auto place = static_cast<size_t>(member);
            groups[place]->all_reduce(whole[place].data(), kCount, Dtype::kBfloat16, Reduction::kAverage, 0,
                                      outcomes.add());
            for (size_t from = 0, each = 1; from < kCount; from += each, each = std::min(3 * each, kCount - from))
                groups[place]->all_reduce(parts[place].data() + 2 * from, std::min(each, kCount - from),
                                          Dtype::kBfloat16, Reduction::kAverage, 0, outcomes.add());
        }
        world->finish(outcomes);
        outcomes.check_success();
        CHECK(parts == whole);
        for (const Bytes& other : whole)
            CHECK(other == whole[0]);
    }
}

}  // namespace

std::vector<Test> collective_tests() {
    return {{"every operation", every_operation},
            {"many at once over groups in opposite order", many_at_once_over_groups_in_opposite_order},
            {"buckets change no bit", buckets_change_no_bit}};
}

}  // namespace taskd::rail::test
