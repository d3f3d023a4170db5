// Tests of members that leave as soon as they have nothing more to do (leaving.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void who_leaves_in_good_order_fails_nobody(uint64_t seed);
void what_a_member_sent_outlives_it(uint64_t);
void a_member_that_has_gone_on_breaks_no_making_of_groups(uint64_t);
void only_what_can_never_come_fails(uint64_t);
void a_listener_without_descriptors_goes_on_later(uint64_t);

}  // namespace taskd::rail::test
