// Something is thrown where it is not expected, in a call and on the engine's thread. A socket throws, or memory runs
// out at any place that allocates. This costs an epoch at most. The process and the next epoch go on.
#include "thrown.hpp"

#include <atomic>
#include <functional>

#include "rail/io/endpoint.hpp"
#include "rail/io/handshake.hpp"
#include "scarce.hpp"
#include "team.hpp"

namespace taskd::rail::test {
namespace {

const char kFault[] = "gave the epoch up because of an error (";

bool says_why(const std::string& text) {
    return text.find(kFault) != std::string::npos;
}

// Whether rank 0 had done its part when the error came. Then rank 0 waits for nothing, and only rank 1 misses
// something.
bool came_behind_its_work(const std::vector<std::string>& texts) {
    return texts[0].empty() && texts[1].find("is lost: ") != std::string::npos;
}

// Runs an epoch on one rank. Returns why it failed; empty if its group works.
std::string one_epoch(Team& team, int rank, int64_t epoch) {
    const auto place = static_cast<size_t>(rank);
    std::shared_ptr<Group> group;
    try {
        group = team.engines[place]->join(epoch, "g", team.endpoints, team.ranks, rank, taskd::test::patience());
    } catch (const Trouble& trouble) {
        return trouble.what();
    }
    std::vector<float> data(100'000, 1.0F);
    Ending ending;
    group->all_reduce(data.data(), data.size(), Dtype::kFloat32, Reduction::kSum, kPatienceNs, ending.done());
    std::string text = ending.wait();
    CHECK(!text.empty() || data.back() == static_cast<float>(team.ranks.size()));
    return text;
}

// Runs an epoch on both ranks. Calls `failed` for each rank that fails, as soon as it has failed.
std::vector<std::string> epoch_of_both(Team& team, int64_t epoch,
                                       const std::function<void(int rank, const std::string& text)>& failed) {
    std::vector<std::string> texts(2);
    team.each([&](int rank) {
        std::string& text = texts[static_cast<size_t>(rank)];
        text = one_epoch(team, rank, epoch);
        if (!text.empty())
            failed(rank, text);
    });
    return texts;
}

void goes_on(Team& team, int64_t epoch) {
    const auto failed = [](int rank, const std::string& text) {
        give_up("rank " + std::to_string(rank) + " in the next epoch: " + text);
    };
    epoch_of_both(team, epoch, failed);
}

void strike(FaultySockets::Call call, int after, int times, int* epochs) {
    Team team(2);
    team.sockets[0]->throw_in(call, after, times);
    // Aborts rank 1, as a manager would, so that it does not wait in vain. Rank 0 has to find its fault by itself.
    const auto failed = [&](int rank, const std::string&) {
        if (rank == 0)
            team.engines[1]->abort(1, "rank 0 has failed");
    };
    const std::vector<std::string> texts = epoch_of_both(team, 1, failed);
    const bool is_thrown = team.sockets[0]->thrown() > 0;
    team.sockets[0]->throw_in(call, 0, 0);
    // A connection that has not proved itself yet belongs to no session. It is made again, and no epoch is lost.
    if (!texts[0].empty() || !texts[1].empty()) {
        if (!is_thrown || !(says_why(texts[0]) || came_behind_its_work(texts)))
            give_up("rank 0: '" + texts[0] + "', rank 1: '" + texts[1] + "'");
        ++*epochs;
    }
    goes_on(team, 2);
}

}  // namespace

// The call that joins answers the connections that wait at the door.
void what_is_thrown_in_a_call_costs_an_epoch(uint64_t) {
    for (const int times : {1, 2}) {
        Team team(2);
        const bool is_first = unpack(team.endpoints[0]).process < unpack(team.endpoints[1]).process;
        const int waits = is_first ? 0 : 1;
        const int joins = 1 - waits;
        FaultySockets& sockets = *team.sockets[static_cast<size_t>(joins)];
        sockets.throw_in(FaultySockets::kWrite, 2, times);  // after one challenge for each rail
        std::vector<std::string> texts(2);
        team.each([&](int rank) {
            if (rank == joins)
                sockets.wait_until_read(2 * (kHelloBytes + kProofBytes));
            texts[static_cast<size_t>(rank)] = one_epoch(team, rank, 1);
            if (rank == joins)
                team.engines[static_cast<size_t>(waits)]->abort(1, "the other rank has failed");
        });
        CHECK(sockets.thrown() == times);
        CHECK(says_why(texts[static_cast<size_t>(joins)]) && !texts[static_cast<size_t>(waits)].empty());
        CHECK(texts[static_cast<size_t>(joins)].find("Join the next one.") != std::string::npos);
        // The epoch stays lost.
        CHECK(says_why(one_epoch(team, joins, 1)));
        goes_on(team, 2);
        // Nothing is left over that a timer, an order or the end could find.
        team.engines[0]->set_rail("a", false);
        team.engines[0]->set_rail("a", true);
        goes_on(team, 3);
    }
}

void what_is_thrown_on_the_thread_costs_an_epoch(uint64_t) {
    int epochs = 0;
    for (const auto call : {FaultySockets::kDial, FaultySockets::kAccept, FaultySockets::kRead, FaultySockets::kWrite,
                            FaultySockets::kQueued}) {
        for (const int after : {0, 1, 2, 3, 5, 8, 13, 40}) {
            for (const int times : {1, 3})
                strike(call, after, times, &epochs);
        }
    }
    CHECK(epochs > 10);
    std::printf("%d epochs ended by what was thrown\n", epochs);
}

namespace {

// Returns the text that `work` throws. On this thread, the allocation after the next `left` ones fails.
std::string run_out(int left, const std::function<void()>& work) {
    std::string text;
    g_allocations_left = left;
    try {
        work();
        g_allocations_left = -1;
    } catch (const std::exception& error) {
        g_allocations_left = -1;
        text = error.what();
    }
    return text;
}

// Joins an epoch on both ranks and ends it again. Returns why the victim failed to join; empty if it did not fail.
std::string join_and_end(Team& team, int64_t epoch, int victim, int left, const std::function<void()>& joined) {
    std::string texts[2];
    team.each([&](int rank) {
        const auto place = static_cast<size_t>(rank);
        texts[place] = run_out(rank == victim ? left : -1, [&] {
            team.engines[place]->join(epoch, "g", team.endpoints, team.ranks, rank, taskd::test::patience());
        });
        if (rank == victim && joined)
            joined();
        if (!texts[place].empty())
            team.engines[1 - place]->abort(epoch, "the other rank has failed");
    });
    for (const auto& engine : team.engines)
        engine->abort(epoch, "the test goes on");
    return texts[static_cast<size_t>(victim)];
}

}  // namespace

// Memory runs out at one rank. This may be the rank that dials or the other one.
void memory_that_runs_out_costs_an_epoch(uint64_t) {
    Team team(2);
    const std::string reason = "memory runs out in this";
    int64_t epoch = 0;
    int in_calls = 0;
    int on_thread = 0;
    for (int left = 0; left < 400; left += 1 + left / 12) {
        for (const int victim : {0, 1}) {
            Engine& engine = *team.engines[static_cast<size_t>(victim)];
            FaultySockets& sockets = *team.sockets[static_cast<size_t>(victim)];
            g_may_run_out = true;
            in_calls += join_and_end(team, ++epoch, victim, left, nullptr).empty() ? 0 : 1;
            const auto is_set = std::make_shared<std::atomic<bool>>(false);
            sockets.before_reads([left, is_set] {
                if (!is_set->exchange(true))
                    g_allocations_left = left;
            });
            const std::string text = join_and_end(team, ++epoch, victim, -1, [] { g_may_run_out = false; });
            on_thread += text.empty() ? 0 : 1;
            CHECK(text.empty() || says_why(text));
            sockets.before_reads([] { g_allocations_left = -1; });
            join_and_end(team, ++epoch, victim, -1, [&] {
                g_may_run_out = true;
                const std::string order = run_out(left, [&] { engine.set_rail("a", left % 2 == 0); });
                const std::string end = run_out(left, [&] { engine.abort(epoch, reason); });
                CHECK(order.empty() || says_why(order));
                CHECK(end.empty());
            });
            sockets.before_reads(nullptr);
        }
    }
    g_may_run_out = false;
    std::printf("no memory: %d times in a call, %d times on the thread\n", in_calls, on_thread);
    CHECK(in_calls > 10 && on_thread > 5);
    goes_on(team, ++epoch);
    g_may_run_out = true;
    const std::string text = run_out(0, [&] { team.engines[0]->close(); });
    g_may_run_out = false;
    CHECK(text.empty());
}

// If it is the address of one rail only, only that rail fails.
void an_address_that_nobody_knows_costs_a_rail(uint64_t) {
    Team team(0);
    for (int rank = 0; rank < 2; ++rank) {
        Settings settings;
        settings.rails = {{"a", "127.0.0.2", ""}, {"b", "::1", ""}};
        settings.key = std::string(32, 'k');
        team.engines.push_back(std::make_unique<Engine>(settings));
        Endpoint endpoint = unpack(team.engines.back()->endpoint());
        endpoint.rails[1].address = "fe80::1%nosuch";
        team.endpoints.push_back(pack(endpoint));
        team.ranks.push_back(rank);
    }
    goes_on(team, 1);
}

}  // namespace taskd::rail::test
