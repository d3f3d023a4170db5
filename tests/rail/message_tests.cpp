// Messages from rank to rank: by tag, in order, from any rank, small and large.
#include <map>

#include "fake_transport.hpp"
#include "parts/check.hpp"
#include "rail/collectives/messages.hpp"
#include "reference.hpp"
#include "suite.hpp"
#include "world.hpp"

namespace taskd::rail::test {
namespace {

Bytes text(int from, uint32_t tag, int index, size_t bytes) {
    Bytes bytes_of_it(bytes);
    const size_t first = static_cast<size_t>(from) * 31 + size_t{tag} * 7 + static_cast<size_t>(index) * 3;
    for (size_t place = 0; place < bytes; ++place)
        bytes_of_it[place] = static_cast<char>(first + place);
    return bytes_of_it;
}

// The size follows from sender, tag and index, so that both sides know it.
size_t size_of_message(int from, uint32_t tag, int index) {
    constexpr size_t kSizes[] = {0, 1, 100, 65536, 65537, 300000};
    return kSizes[(static_cast<size_t>(from) + tag + static_cast<size_t>(index)) % std::size(kSizes)];
}

void messages_of_a_tag_come_in_order() {
    constexpr int kSize = 3;
    constexpr int kEach = 5;
    for (unsigned seed = 0; seed < 10; ++seed) {
        std::mt19937 random(seed);
        const std::unique_ptr<World> world = fake_world(seed);
        const auto groups = world->group("g", first(kSize));
        std::vector<std::unique_ptr<Bytes>> given;
        std::vector<std::pair<std::unique_ptr<Bytes>, Bytes>> taken;
        Outcomes outcomes;
        for (int index = 0; index < kEach; ++index)
            for (int from = 0; from < kSize; ++from)
                for (int to = 0; to < kSize; ++to)
                    for (const uint32_t tag : {0U, 1U, kTagsUsedOnce - 1}) {
                        if (from == to)
                            continue;
                        const size_t bytes = size_of_message(from, tag, index);
                        given.push_back(std::make_unique<Bytes>(text(from, tag, index, bytes)));
                        taken.emplace_back(std::make_unique<Bytes>(bytes), *given.back());
                        Group& sender = *groups[static_cast<size_t>(from)];
                        Group& receiver = *groups[static_cast<size_t>(to)];
                        const bool sends_first = random() % 2 == 0;
                        for (const bool sends : {sends_first, !sends_first}) {
                            if (sends)
                                sender.send(given.back()->data(), bytes, to, tag, 0, outcomes.add());
                            else
                                receiver.receive(taken.back().first->data(), bytes, from, tag, 0, nullptr,
                                                 outcomes.add());
                            world->stir();
                        }
                    }
        world->finish(outcomes);
        outcomes.check_success();
        for (const auto& [found, wanted] : taken)
            CHECK(*found == wanted);
    }
}

// Rank 0 receives from any rank and sometimes from a certain one. Each sender's messages still come in their order.
void from_anybody_and_from_somebody() {
    constexpr int kSize = 4;
    constexpr int kEach = 14;
    // Asks for a certain sender only while earlier receives cannot have taken all of its messages.
    const auto wanted_from = [](size_t index) {
        return index < kEach && index % 5 == 1 ? static_cast<int>(1 + index / 5) : -1;
    };
    for (unsigned seed = 0; seed < 30; ++seed) {
        std::mt19937 random(seed);
        const size_t bytes = seed % 2 == 0 ? 40 : 100000;
        const std::unique_ptr<World> world = fake_world(seed);
        const auto groups = world->group("g", first(kSize));
        std::vector<Bytes> given;
        std::vector<std::pair<int, int>> to_send;  // sender, index
        for (int index = 0; index < kEach; ++index)
            for (int from = 1; from < kSize; ++from)
                to_send.emplace_back(from, index);
        const size_t count = to_send.size();
        given.reserve(count);
        std::vector<Bytes> taken(count, Bytes(bytes));
        std::vector<int> sources(count, -2);
        Outcomes outcomes;
        for (size_t index = 0; index < count; ++index) {
            const int from = wanted_from(index);
            groups[0]->receive(taken[index].data(), bytes, from, 9, 0, &sources[index], outcomes.add());
            const auto [sender, number] = to_send[index];
            given.push_back(text(sender, 9, number, bytes));
            groups[static_cast<size_t>(sender)]->send(given.back().data(), bytes, 0, 9, 0, outcomes.add());
            world->stir();
        }
        world->finish(outcomes);
        outcomes.check_success();
        std::map<int, int> next;
        for (size_t index = 0; index < count; ++index) {
            CHECK(sources[index] >= 1 && sources[index] < kSize);
            CHECK(wanted_from(index) < 0 || sources[index] == wanted_from(index));
            CHECK(taken[index] == text(sources[index], 9, next[sources[index]]++, bytes));
        }
    }
}

void one_that_gives_up_lets_the_next_one_take() {
    for (unsigned seed = 0; seed < 10; ++seed) {
        const std::unique_ptr<World> world = fake_world(seed);
        const auto groups = world->group("g", first(3));
        Outcomes given_up;
        Outcomes others;
        Bytes none(8);
        Bytes found(8);
        Bytes also(8);
        const Bytes word(8, 'w');
        const uint64_t handle = groups[0]->receive(none.data(), 8, -1, 0, 0, nullptr, given_up.add());
        int source = -1;
        groups[0]->receive(found.data(), 8, 2, 0, 0, &source, others.add());
        groups[0]->receive(also.data(), 8, -1, 0, 0, nullptr, others.add());
        world->stir();
        groups[0]->cancel(handle, "enough");
        groups[0]->cancel(handle, "twice is fine");
        CHECK(given_up.has_ended(0) && given_up.failure(0)->code == Failure::Code::kAborted);
        groups[1]->send(word.data(), 8, 0, 0, 0, others.add());
        groups[2]->send(word.data(), 8, 0, 0, 0, others.add());
        world->finish(others);
        others.check_success();
        CHECK(source == 2 && found == word && also == word && none == Bytes(8));
    }
}

// The receiver may have room for more, and may take the bytes for something else.
void a_message_may_be_shorter_than_its_place() {
    constexpr size_t kRoom = 400000;
    for (unsigned seed = 0; seed < 30; ++seed)
        for (const size_t bytes : {size_t{0}, size_t{4}, kEagerBytes, kEagerBytes + 4, kRoom}) {
            const std::unique_ptr<World> world = fake_world(seed);
            const auto groups = world->group("g", first(2));
            const Bytes word = text(1, 0, static_cast<int>(seed), bytes);
            Bytes found(kRoom, 'k');
            Outcomes outcomes;
            for (const bool sends : {seed % 2 == 0, seed % 2 != 0}) {
                if (sends)
                    groups[1]->send(word.data(), {bytes, Dtype::kFloat32}, 0, 7, 0, outcomes.add());
                else
                    groups[0]->receive(found.data(), {kRoom, Dtype::kInt64}, seed % 3 == 0 ? -1 : 1, 7, 0, nullptr,
                                       outcomes.add());
                world->stir();
            }
            world->finish(outcomes);
            outcomes.check_success();
            Bytes wanted = word;
            wanted.resize(kRoom, 'k');
            CHECK(found == wanted);
        }
}

void a_message_that_is_too_long_is_named() {
    for (const size_t bytes : {size_t{44}, size_t{400000}}) {
        const std::unique_ptr<World> world = fake_world(static_cast<unsigned>(bytes));
        const auto groups = world->group("g", first(2));
        const Bytes word(bytes);
        Bytes found(bytes, 'k');
        Outcomes outcomes;
        groups[0]->receive(found.data(), {40, Dtype::kFloat32}, 1, 7, 0, nullptr, outcomes.add());
        groups[1]->send(word.data(), {bytes, Dtype::kFloat32}, 0, 7, 2000000000, outcomes.add());
        world->finish(outcomes);
        const std::string said = outcomes.failure(0)->text;
        CHECK(said.find("message of " + std::to_string(bytes / 4) + " float32") != std::string::npos);
        CHECK(said.find("message of 10 float32 from ") != std::string::npos);
        CHECK(said.find("room for the whole message") != std::string::npos);
        CHECK(found == Bytes(bytes, 'k'));
    }
}

// What a broadcast moves is bytes, whatever each rank takes them for.
void a_broadcast_of_other_types_of_the_same_size_is_one() {
    for (unsigned seed = 0; seed < 10; ++seed)
        for (const size_t bytes : {size_t{80}, size_t{400000}}) {
            const std::unique_ptr<World> world = fake_world(seed);
            const auto groups = world->group("g", first(3));
            std::vector<Bytes> data(3, text(1, 0, 0, bytes));
            data[0].assign(bytes, 'k');
            data[2].assign(bytes, 'k');
            const Dtype types[] = {Dtype::kInt64, Dtype::kFloat32, Dtype::kByte};
            Outcomes outcomes;
            for (size_t member = 0; member < 3; ++member)
                groups[member]->broadcast(data[member].data(), {bytes, types[member]}, 1, 0, outcomes.add());
            world->finish(outcomes);
            outcomes.check_success();
            CHECK(data[0] == data[1] && data[2] == data[1]);
        }
}

void a_group_remembers_so_many_tags_and_no_more() {
    struct Members : Circle {
        using Circle::Circle;

        void ended(Operation&, const Failure*) override {}
    };

    FakeNet net;
    FakeTransport transport(net, 0);
    Members members(transport, "g", 0, 3);
    Messages messages(members, 3);
    for (const uint32_t tag : {0U, 1U, 2U, kTagsUsedOnce, kTagsUsedOnce + 1, kTagsUsedOnce + 1, 2U}) {
        CHECK(messages.why_not_send(1, tag).empty());
        messages.send(nullptr, 0, 1, tag);
    }
    CHECK(messages.why_not_send(1, 0).empty() && messages.why_not_send(1, kTagsUsedOnce + 2).empty());
    const std::string why = "group g has had messages under 3 tags and remembers no more";
    CHECK(messages.why_not_send(1, 3).find(why) == 0 && messages.why_not_send(2, 0).find(why) == 0);
    CHECK(messages.why_not_receive(1, 3).empty());
    const auto take = [&](int from, uint32_t tag) {
        const std::shared_ptr<Operation> operation = messages.receive(nullptr, 0, from, tag, nullptr);
        messages.taken(static_cast<ReceiveOperation&>(*operation), from);
    };
    for (const uint32_t tag : {0U, 1U, 2U, kTagsUsedOnce, 0U})
        take(1, tag);
    CHECK(messages.why_not_receive(1, 2).empty() && messages.why_not_receive(-1, 2).empty());
    CHECK(messages.why_not_receive(2, 2).find(why) == 0 && messages.why_not_receive(-1, 3).find(why) == 0);
}

}  // namespace

std::vector<Test> message_tests() {
    return {{"messages of a tag come in order", messages_of_a_tag_come_in_order},
            {"from anybody and from somebody", from_anybody_and_from_somebody},
            {"one that gives up lets the next one take", one_that_gives_up_lets_the_next_one_take},
            {"a message may be shorter than its place", a_message_may_be_shorter_than_its_place},
            {"a message that is too long is named", a_message_that_is_too_long_is_named},
            {"a broadcast of other types of the same size is one", a_broadcast_of_other_types_of_the_same_size_is_one},
            {"a group remembers so many tags and no more", a_group_remembers_so_many_tags_and_no_more}};
}

}  // namespace taskd::rail::test
