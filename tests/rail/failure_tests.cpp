// Failures: ranks that disagree, ranks that do not come, impossible arguments, and the end of a group.
#include "parts/check.hpp"
#include "reference.hpp"
#include "suite.hpp"
#include "world.hpp"

namespace taskd::rail::test {
namespace {

using Code = Failure::Code;
constexpr int64_t kSecondNs = 1000000000;

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

void check_failure(const Outcomes& outcomes, size_t index, Code code, const std::string& part) {
    const std::optional<Failure> failure = outcomes.failure(index);
    if (!failure || failure->code != code || !has(failure->text, part))
        std::fprintf(stderr, "operation %zu: %s\n", index, failure ? failure->text.c_str() : "no failure");
    CHECK(failure && failure->code == code && has(failure->text, part));
}

// All ranks learn of it, even a rank that exchanges nothing with the rank in the wrong operation.
void ranks_in_different_operations_learn_it_by_name() {
    for (unsigned seed = 0; seed < 20; ++seed)
        for (const size_t count : {10UL, 100000UL}) {
            const std::unique_ptr<World> world = fake_world(seed);
            const auto groups = world->group("g", first(3));
            std::vector<Bytes> data(3, Bytes(4 * count));
            Outcomes before;
            for (const auto& group : groups)
                group->barrier(0, before.add());
            world->finish(before);
            before.check_success();
            Outcomes outcomes;
            for (size_t member : {0U, 2U})
                groups[member]->all_reduce(data[member].data(), count, Dtype::kFloat32, Reduction::kSum, 0,
                                           outcomes.add());
            world->stir();
            groups[1]->broadcast(data[1].data(), 4 * count, 0, 0, outcomes.add());
            world->finish(outcomes);
            const std::string number = " of group g";
            const std::string mine = "all_reduce (SUM) of " + std::to_string(count) + " float32";
            const std::string other = "broadcast of " + std::to_string(4 * count) + " bytes from root 0";
            for (const size_t index : {0U, 1U})
                check_failure(outcomes, index, Code::kDiffers, "rank 1 is in " + other + " as #1" + number);
            check_failure(outcomes, 0, Code::kDiffers, "this rank in " + mine);
            check_failure(outcomes, 2, Code::kDiffers, "is in " + mine + " as #1" + number + ", this rank in " + other);
        }
}

void sizes_types_reductions_and_roots_must_agree() {
    const auto start = [](Group& group, int what, void* data, Done done) {
        const bool odd = group.me() == 1;
        if (what == 0)
            group.all_reduce(data, odd ? 10 : 11, Dtype::kFloat32, Reduction::kSum, 0, std::move(done));
        else if (what == 1)
            group.all_reduce(data, 10, odd ? Dtype::kFloat32 : Dtype::kInt32, Reduction::kSum, 0, std::move(done));
        else if (what == 2)
            group.all_reduce(data, 10, Dtype::kFloat32, odd ? Reduction::kMax : Reduction::kSum, 0, std::move(done));
        else if (what == 3)
            group.reduce(data, data, 10, Dtype::kFloat32, Reduction::kSum, group.me(), 0, std::move(done));
        else if (what == 4)
            group.all_gather(data, {data, data}, {40, odd ? Dtype::kFloat32 : Dtype::kInt32}, 0, std::move(done));
        else
            group.all_to_all({{data, 8}, {data, 8}}, {{data, 8}, {data, 8}}, 0, std::move(done),
                             odd ? Dtype::kFloat32 : Dtype::kInt32);
    };
    for (int what = 0; what < 6; ++what)
        for (unsigned seed = 0; seed < 5; ++seed) {
            const std::unique_ptr<World> world = fake_world(seed);
            const auto groups = world->group("g", first(2));
            std::vector<Bytes> data(2, Bytes(1000));
            Outcomes outcomes;
            for (const auto& group : groups)
                start(*group, what, data[static_cast<size_t>(group->me())].data(), outcomes.add());
            world->finish(outcomes);
            check_failure(outcomes, 0, Code::kDiffers, "rank 1 is in ");
            check_failure(outcomes, 1, Code::kDiffers, "rank 0 is in ");
        }
    const std::unique_ptr<World> world = fake_world(1);
    const auto groups = world->group("g", first(2));
    std::vector<Bytes> data(2, Bytes(1000));
    Outcomes outcomes;
    groups[0]->all_to_all({{data[0].data(), 8}, {data[0].data(), 8}}, {{data[0].data(), 8}, {data[0].data(), 9}},
                          kSecondNs, outcomes.add());
    groups[1]->all_to_all({{data[1].data(), 8}, {data[1].data(), 8}}, {{data[1].data(), 8}, {data[1].data(), 8}},
                          kSecondNs, outcomes.add());
    world->finish(outcomes);
    check_failure(outcomes, 0, Code::kDiffers, "rank 1 uses other sizes in all_to_all of bytes, #0 of group g");
}

void who_does_not_come_is_named_in_time() {
    const std::unique_ptr<World> world = fake_world(3);
    const auto groups = world->group("g", first(4));
    std::vector<Bytes> data(4, Bytes(1 << 20));
    for (const size_t count : {4UL, 1UL << 18}) {
        Outcomes outcomes;
        for (const size_t member : {0U, 2U})
            groups[member]->all_reduce(data[member].data(), count, Dtype::kFloat32, Reduction::kSum, 2 * kSecondNs,
                                       outcomes.add());
        world->finish(outcomes);
        for (const size_t index : {0U, 1U}) {
            check_failure(outcomes, index, Code::kTimeout, "Timed out waiting 2000ms: no answer from ");
            check_failure(outcomes, index, Code::kTimeout, " from rank 1 and rank 3. ");
        }
    }
    Outcomes message;
    groups[0]->receive(data[0].data(), 5, 3, 77, kSecondNs / 4, nullptr, message.add());
    groups[0]->receive(data[0].data(), 5, -1, 78, kSecondNs / 4, nullptr, message.add());
    world->finish(message);
    check_failure(message, 0, Code::kTimeout, "message of 5 bytes from rank 3 with tag 77 in group g");
    check_failure(message, 0, Code::kTimeout, "Timed out waiting 250ms: no answer from rank 3. ");
    check_failure(message, 1, Code::kTimeout, "from anybody with tag 78");
}

void what_cannot_be_is_refused_with_the_cure() {
    const std::unique_ptr<World> world = fake_world(4);
    const auto groups = world->group("g", first(2));
    Group& group = *groups[0];
    Bytes data(100);
    Outcomes outcomes;
    group.all_reduce(data.data(), 1, Dtype::kByte, Reduction::kSum, 0, outcomes.add());
    group.all_reduce(data.data(), 1, Dtype::kInt64, Reduction::kAverage, 0, outcomes.add());
    group.reduce(data.data(), data.data(), 1, Dtype::kFloat32, Reduction::kBitOr, 0, 0, outcomes.add());
    group.broadcast(data.data(), 1, 2, 0, outcomes.add());
    group.all_gather(data.data(), {data.data()}, 1, 0, outcomes.add());
    group.gather(data.data(), {}, 1, 0, 0, outcomes.add());
    group.send(data.data(), 1, 0, 0, 0, outcomes.add());
    group.receive(data.data(), 1, 7, 0, 0, nullptr, outcomes.add());
    group.all_to_all({{data.data(), 3}, {}}, {{data.data(), 4}, {}}, 0, outcomes.add());
    CHECK(outcomes.all_ended());
    constexpr const char* kParts[] = {
        "there is no reduction SUM of bytes",        "use SUM and divide",
        "there is no reduction BOR of float32",      "it has the ranks 0 to 1",
        "one output for each of the 2 ranks, not 1", "one output for each of the 2 ranks on the root",
        "cannot send a message to itself",           "rank 7 is not in group g",
        "sends 3 bytes to itself, but takes 4"};
    for (size_t index = 0; index < std::size(kParts); ++index)
        check_failure(outcomes, index, Code::kUsage, kParts[index]);
    CHECK(group.unfinished() == 0);
    Outcomes after;  // the refused operations have used no sequence number
    for (const auto& each : groups)
        each->barrier(0, after.add());
    world->finish(after);
    after.check_success();
}

void an_abort_ends_all_and_nothing_is_touched_any_more() {
    for (unsigned seed = 0; seed < 30; ++seed) {
        const std::unique_ptr<World> world = fake_world(seed);
        const auto groups = world->group("g", first(2));
        std::vector<Bytes> data(2, Bytes(1500000, 'a'));
        Outcomes outcomes;
        for (const auto& group : groups)
            group->all_reduce(data[static_cast<size_t>(group->me())].data(), 375000, Dtype::kFloat32, Reduction::kSum,
                              0, outcomes.add());
        groups[0]->receive(data[0].data(), 5, -1, 0, 0, nullptr, outcomes.add());
        for (unsigned times = 0; times < seed; ++times)
            world->stir();
        groups[0]->abort("cut");
        CHECK(outcomes.has_ended(0) && outcomes.has_ended(2) && groups[0]->unfinished() == 0);
        const Bytes frozen = data[0];
        Outcomes later;
        groups[0]->barrier(0, later.add());
        CHECK(later.all_ended());
        check_failure(later, 0, Code::kAborted, "cut");
        for (int times = 0; times < 50; ++times)
            world->stir();
        CHECK(data[0] == frozen);
        groups[1]->abort("cut, too");
        CHECK(outcomes.all_ended());
        // The operation may have ended well before the abort. If it failed, it says why.
        if (outcomes.failure(0))
            check_failure(outcomes, 0, Code::kAborted, "cut");
        check_failure(outcomes, 2, Code::kAborted, "cut");
    }
}

}  // namespace

std::vector<Test> failure_tests() {
    return {{"ranks in different operations learn it by name", ranks_in_different_operations_learn_it_by_name},
            {"sizes, types, reductions and roots must agree", sizes_types_reductions_and_roots_must_agree},
            {"who does not come is named in time", who_does_not_come_is_named_in_time},
            {"what cannot be is refused with the cure", what_cannot_be_is_refused_with_the_cure},
            {"an abort ends all and nothing is touched any more", an_abort_ends_all_and_nothing_is_touched_any_more}};
}

}  // namespace taskd::rail::test
