// Tests of what a rail gets and how soon a bad one is noticed, in virtual time (rails.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void a_rail_that_returns_has_its_share_again(uint64_t);
void a_rail_that_is_fast_again_has_its_share_again(uint64_t);
void rails_that_share_a_processor_become_equal(uint64_t);
void small_messages_use_every_rail(uint64_t);
void a_slow_rail_gets_what_it_delivers_and_delays_nothing(uint64_t);
void a_silent_rail_costs_milliseconds(uint64_t);
void a_rail_that_is_silent_at_any_moment_costs_milliseconds(uint64_t);
void the_other_side_is_told_of_a_lost_rail(uint64_t);
void a_stopped_process_costs_no_rail(uint64_t);
void a_starved_process_costs_no_rail(uint64_t);
void a_rail_that_nobody_hears_is_taken_down(uint64_t);
void silence_on_all_rails_is_held_for_as_long_as_may_be(uint64_t);
void who_has_ended_is_not_waited_for(uint64_t);
void who_lives_after_all_loses_nothing(uint64_t);
void silence_that_is_over_counts_no_more(uint64_t);

}  // namespace taskd::rail::test
