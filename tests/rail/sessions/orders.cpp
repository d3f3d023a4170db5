// Tests of orders that put a rail out of use and back, in virtual time.
//
// Does not: give orders by the engine's own functions (main.cpp does).
#include "orders.hpp"

#include "virtual.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kMs = kMillisecondNs;
constexpr int64_t kHeardNs = 5 * kMs;  // by then both ends know, and bytes on their way have arrived
const std::vector<size_t> kLarge{1 << 20, 1 << 20, 1 << 20, 1 << 20};
const std::vector<size_t> kFew{64};  // bytes: so few that the other rail could always carry them

uint64_t carried(World& world, size_t rail) {
    const CounterRecord& record = world.sides[0]->session().paths()[rail].record;
    return record.bytes_out.load() + record.bytes_in.load();
}

uint64_t carried_in(World& world, size_t rail, int64_t for_ns) {
    const uint64_t before = carried(world, rail);
    world.run(for_ns);
    return carried(world, rail) - before;
}

bool is_proved_everywhere(World& world, size_t rail) {
    return is_proved(world.sides[0]->session().paths()[rail].record) &&
           is_proved(world.sides[1]->session().paths()[rail].record);
}

}  // namespace

// The other end is told, and told again on a new connection. A rail that is the last one still carries.
void a_rail_out_of_use_at_one_end_is_left_by_both(uint64_t) {
    for (const auto& messages : {kLarge, kFew}) {
        World world;
        for (auto& side : world.sides)
            side->messages = messages;
        world.run(200 * kMs);
        world.sides[0]->session().set_order(0, false);
        world.run(kHeardNs);
        CHECK(carried_in(world, 0, 300 * kMs) == 0);
        CHECK(carried_in(world, 1, 100 * kMs) > 0);
        world.reset(0);
        world.run(100 * kMs);
        CHECK(carried_in(world, 0, 300 * kMs) == 0);
        world.rails[1].is_there = false;
        world.reset(1);
        world.run(kHeardNs);
        CHECK(carried_in(world, 0, 300 * kMs) > 0);
        world.rails[1].is_there = true;
        world.run(600 * kMs);
        CHECK(carried_in(world, 0, 300 * kMs) == 0);
        world.sides[0]->session().set_order(0, true);
        CHECK(carried_in(world, 0, 300 * kMs) > 0);
    }
}

// This holds however little is sent, and however much better the other rail is.
void a_rail_that_is_put_back_is_proved_by_the_next_bytes(uint64_t) {
    for (const auto& messages : {kLarge, kFew, std::vector<size_t>{200 << 10}}) {
        World world;
        world.rails[0].ways[0].latency_ns = world.rails[0].ways[1].latency_ns = 2 * kMs;
        for (auto& side : world.sides)
            side->messages = messages;
        world.run(200 * kMs);
        for (auto& side : world.sides)
            side->session().set_order(0, false);
        world.run(200 * kMs);
        for (auto& side : world.sides)
            side->session().set_order(0, true);
        CHECK(!is_proved_everywhere(world, 0));
        world.run(50 * kMs);
        CHECK(is_proved_everywhere(world, 0));
    }
}

}  // namespace taskd::rail::test
