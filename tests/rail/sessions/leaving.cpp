// A process that has done all its work leaves: over one rail or two, at any moment, while sockets fail.
#include "leaving.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>

#include "team.hpp"

namespace taskd::rail::test {
namespace {

constexpr size_t kCounts[] = {1, 900, 5'000, 300'000};

float value(int rank, size_t index) {
    return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 13) % 101);
}

std::vector<float> values(int rank, size_t count) {
    std::vector<float> data(count);
    for (size_t index = 0; index < count; ++index)
        data[index] = value(rank, index);
    return data;
}

// Runs one collective of a kind that the seed chooses, and checks the result.
void run_one(Group& group, uint64_t seed) {
    std::mt19937_64 random(seed);
    const int size = group.size();
    const int me = group.me();
    const size_t count = kCounts[random() % 4];
    const int root = static_cast<int>(random() % static_cast<uint64_t>(size));
    std::vector<float> data = values(me, count);
    std::vector<std::vector<float>> parts(static_cast<size_t>(size), std::vector<float>(count, -1.0F));
    std::vector<void*> outputs;
    for (auto& part : parts)
        outputs.push_back(part.data());
    const size_t bytes = count * sizeof(float);
    Ending ending;
    const uint64_t kind = random() % 5;
    if (kind == 0)
        group.barrier(kPatienceNs, ending.done());
    else if (kind == 1)
        group.all_reduce(data.data(), count, Dtype::kFloat32, Reduction::kSum, kPatienceNs, ending.done());
    else if (kind == 2)
        group.broadcast(data.data(), bytes, root, kPatienceNs, ending.done());
    else if (kind == 3)
        group.all_gather(data.data(), outputs, bytes, kPatienceNs, ending.done());
    else
        group.gather(data.data(), me == root ? outputs : std::vector<void*>(), bytes, root, kPatienceNs, ending.done());
    if (const std::string trouble = ending.wait(); !trouble.empty()) {
        std::fprintf(stderr, "seed %lu rank %d of %d: %s\n", seed, me, size, trouble.c_str());
        CHECK(trouble.empty());
    }
    for (size_t index = 0; index < count; ++index) {
        float sum = 0;
        for (int rank = 0; rank < size; ++rank)
            sum += value(rank, index);
        CHECK(kind != 1 || data[index] == sum);
        CHECK(kind != 2 || data[index] == value(root, index));
        for (int rank = 0; (kind == 3 || (kind == 4 && me == root)) && rank < size; ++rank)
            CHECK(parts[static_cast<size_t>(rank)][index] == value(rank, index));
    }
}

}  // namespace

// Every rank leaves at the moment when its own last operation is over, however much of it the others have by then.
void who_leaves_in_good_order_fails_nobody(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 12; ++round) {
        const int size = 2 + static_cast<int>(random() % 3);
        const int rails = 1 + static_cast<int>(random() % 2);
        const uint64_t salt = random();
        // With only one rail, a silent rail would not be the fault of the rank that leaves.
        const int faults = rails == 2 && random() % 2 == 0 ? 4 : 0;
        const int last = 1 + static_cast<int>(random() % 3);
        std::vector<uint64_t> pauses;
        for (int rank = 0; rank < size; ++rank)
            pauses.push_back(random() % 3 == 0 ? random() % 20'000 : 0);
        Team team(size, rails, salt, faults);
        auto groups = team.join(1);
        team.each([&](int rank) {
            const auto place = static_cast<size_t>(rank);
            for (int turn = 0; turn < last; ++turn) {
                if (turn == last - 1)
                    std::this_thread::sleep_for(std::chrono::microseconds(pauses[place]));
                run_one(*groups[place], salt + static_cast<uint64_t>(turn));
            }
            groups[place].reset();
            team.engines[place].reset();
        });
    }
}

// The others begin these operations only after the member has gone. Its part of them still arrives.
void what_a_member_sent_outlives_it(uint64_t) {
    for (const int rails : {1, 2}) {
        Team team(3, rails);
        auto groups = team.join(1);
        std::vector<float> told[3] = {values(0, 1000), values(1, 1000), values(2, 1000)};
        std::vector<float> heard(1000);
        Ending sent[3];
        Group& leaver = *groups[2];
        leaver.broadcast(told[2].data(), 4000, 2, kPatienceNs, sent[0].done());
        leaver.gather(told[2].data(), {}, 4000, 0, kPatienceNs, sent[1].done());
        leaver.send(told[2].data(), 4000, 1, 9, kPatienceNs, sent[2].done());
        for (Ending& ending : sent)
            CHECK(ending.wait().empty());
        groups[2].reset();
        team.engines[2].reset();
        Ending endings[5];
        std::vector<float> parts[3];
        std::vector<void*> outputs;
        for (auto& part : parts) {
            part.resize(1000);
            outputs.push_back(part.data());
        }
        for (int rank = 0; rank < 2; ++rank)
            groups[static_cast<size_t>(rank)]->broadcast(told[rank].data(), 4000, 2, kPatienceNs, endings[rank].done());
        const std::vector<float> own = values(0, 1000);
        groups[0]->gather(own.data(), outputs, 4000, 0, kPatienceNs, endings[2].done());
        const std::vector<float> other = values(1, 1000);
        groups[1]->gather(other.data(), {}, 4000, 0, kPatienceNs, endings[3].done());
        groups[1]->receive(heard.data(), 4000, -1, 9, kPatienceNs, nullptr, endings[4].done());
        for (Ending& ending : endings) {
            if (const std::string trouble = ending.wait(); !trouble.empty()) {
                std::fprintf(stderr, "over %d rails: %s\n", rails, trouble.c_str());
                CHECK(trouble.empty());
            }
        }
        CHECK(told[0] == told[2] && told[1] == told[2] && parts[1] == other && parts[2] == told[2]);
        CHECK(heard == told[2]);
    }
}

// The group goes on for the remaining members. An operation that needs the member that has gone fails at once.
void only_what_can_never_come_fails(uint64_t) {
    Team team(3);
    auto groups = team.join(1);
    char word[3] = {'a', 'b', 'c'};
    char taken[2] = {};
    Ending waits[3];
    groups[0]->barrier(0, waits[0].done());
    groups[0]->receive(&taken[0], 1, -1, 1, 0, nullptr, waits[1].done());
    groups[1]->receive(&taken[1], 1, 2, 2, 0, nullptr, waits[2].done());
    groups[2].reset();
    team.engines[2].reset();
    for (Ending* ending : {&waits[0], &waits[2]}) {
        CHECK(ending->wait().find("rank 2 (node2) is lost: it has left") != std::string::npos);
        CHECK(ending->code() == Failure::Code::kLost);
    }
    // This receive takes from any rank, and rank 1 is still there.
    CHECK(!waits[1].is_done());
    Ending sends[3];
    groups[1]->send(&word[1], 1, 0, 1, kPatienceNs, sends[0].done());
    CHECK(waits[1].wait().empty() && taken[0] == 'b');
    groups[0]->send(&word[0], 1, 2, 1, kPatienceNs, sends[1].done());
    CHECK(sends[0].wait().empty() && !sends[1].wait().empty());
    groups[1].reset();
    team.engines[1].reset();
    Ending nobody;
    groups[0]->receive(&taken[0], 1, -1, 1, 0, nullptr, nobody.done());
    CHECK(nobody.wait().find("it has left") != std::string::npos);
    team.engines[0]->close();
    Ending closed;
    groups[0]->barrier(0, closed.done());
    closed.wait();
    CHECK(closed.code() == Failure::Code::kAborted);
    bool refused = false;
    try {
        team.engines[0]->join(2, "late", {team.endpoints[0]}, {0}, 0, std::chrono::seconds(1));
    } catch (const Trouble& trouble) {
        refused = std::string(trouble.what()).find("has been closed") != std::string::npos;
    }
    CHECK(refused);
}

// Rank 0 has made its group and goes on to its next epoch before rank 1 does. Rank 1 can still make a group. An
// operation of this group fails, but that is another matter.
void a_member_that_has_gone_on_breaks_no_making_of_groups(uint64_t) {
    Team team(2);
    const auto groups = team.join(1);
    Ending told;
    groups[1]->barrier(0, told.done());
    team.engines[0]->abort(1, "epoch 2 has begun");
    // The text is rank 0's own, or it is from rank 0's answer to the dial of the second rail.
    const auto is_told = [](const std::string& text) {
        return text.find("epoch 2 has begun") != std::string::npos ||
               text.find("has ended epoch 1") != std::string::npos;
    };
    CHECK(is_told(told.wait()));
    const auto late = team.engines[1]->join(1, "late", team.endpoints, team.ranks, 1, taskd::test::patience());
    Ending ending;
    late->barrier(0, ending.done());
    CHECK(is_told(ending.wait()) && ending.code() == Failure::Code::kLost);
    const auto next = team.join(2);
    Ending endings[2];
    for (int rank = 0; rank < 2; ++rank)
        next[static_cast<size_t>(rank)]->barrier(kPatienceNs, endings[rank].done());
    CHECK(endings[0].wait().empty() && endings[1].wait().empty());
}

namespace {

// Sockets that have no descriptor left for a while.
class PoorSockets : public SocketLayer {
  public:
    int accept(int listener) override { return refusals-- > 0 ? -EMFILE : SocketLayer::accept(listener); }

    std::atomic<int> refusals{30};
};

}  // namespace

// The system reports connections that wait in the backlog only once.
void a_listener_without_descriptors_goes_on_later(uint64_t) {
    PoorSockets sockets;
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<std::string> endpoints;
    for (int rank = 0; rank < 2; ++rank) {
        Settings settings;
        settings.rails.push_back({"a", "127.0.0.2", ""});
        settings.key = std::string(32, 'k');
        engines.push_back(std::make_unique<Engine>(settings, &sockets));
        endpoints.push_back(engines.back()->endpoint());
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
        threads.emplace_back([&, rank] {
            as_rank(rank, [&] {
                const auto place = static_cast<size_t>(rank);
                const auto group = engines[place]->join(1, "g", endpoints, {0, 1}, rank, taskd::test::patience());
                Ending ending;
                group->barrier(kPatienceNs, ending.done());
                CHECK(ending.wait().empty());
            });
        });
    for (std::thread& thread : threads)
        thread.join();
    CHECK(sockets.refusals <= 0);
}

}  // namespace taskd::rail::test
