// Tests of what a session decides without sockets (pure.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void arrivals_are_a_set(uint64_t seed);
void silence_needs_a_witness(uint64_t);
void rails_pair_by_network_then_name_then_order(uint64_t);
void a_dropped_credit_is_asked_for_again(uint64_t);

}  // namespace taskd::rail::test
