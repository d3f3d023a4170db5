// Tests of orders about rails (orders.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void a_rail_out_of_use_at_one_end_is_left_by_both(uint64_t);
void a_rail_that_is_put_back_is_proved_by_the_next_bytes(uint64_t);

}  // namespace taskd::rail::test
