// The same random operations over engines that really connect, while their sockets fail.
#include <algorithm>

#include "cases.hpp"
#include "sessions/team.hpp"
#include "world.hpp"

namespace taskd::rail::test {

void over_engines(int ranks, int rounds, size_t most_bytes, int faults, unsigned seed);

// Each rank submits from its own thread and goes through the two groups in its own order.
void over_engines(int ranks, int rounds, size_t most_bytes, int faults, unsigned seed) {
    std::mt19937 random(seed);
    Team team(ranks, 2, seed, faults);
    const std::vector<std::vector<std::shared_ptr<Group>>> groups{team.join(1, "even"), team.join(1, "odd")};
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::unique_ptr<Case>> cases;
        for (int index = 0; index < 6; ++index)
            cases.push_back(std::make_unique<Case>(random, ranks, most_bytes));
        Outcomes outcomes;
        team.each([&](int rank) {
            const size_t before = rank % 2 == 0 ? 0 : 1;
            for (size_t turn = 0; turn < 2; ++turn)
                for (size_t index = (before + turn) % 2; index < cases.size(); index += 2)
                    cases[index]->start(*groups[index % 2][static_cast<size_t>(rank)], outcomes.add());
        });
        outcomes.wait();
        outcomes.check_success();
        for (const auto& one : cases)
            one->check();
    }
    for (const auto& list : groups)
        for (const auto& group : list)
            CHECK(group->unfinished() == 0);
}

}  // namespace taskd::rail::test
