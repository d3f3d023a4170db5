// Tests of what happens when something is thrown where it is not expected.
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void what_is_thrown_in_a_call_costs_an_epoch(uint64_t seed);
void what_is_thrown_on_the_thread_costs_an_epoch(uint64_t seed);
void memory_that_runs_out_costs_an_epoch(uint64_t seed);
void an_address_that_nobody_knows_costs_a_rail(uint64_t seed);

}  // namespace taskd::rail::test
