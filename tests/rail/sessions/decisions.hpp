// Tests of the parts of a session that only decide (decisions.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void a_path_is_in_one_state(uint64_t);
void a_late_path_answers_for_what_it_carried(uint64_t);
void the_scheduler_takes_good_paths_first(uint64_t);
void the_scheduler_fills_paths_by_what_they_deliver(uint64_t);
void small_frames_take_turns(uint64_t);
void a_loss_is_one_of_all_connections(uint64_t);
void a_loss_is_borne_within_limits(uint64_t);
void dials_pause_longer_and_longer(uint64_t);
void probes_measure_what_was_before_them(uint64_t);
void a_life_only_moves_forward(uint64_t);
void what_has_come_is_said_in_time(uint64_t);
void pools_are_bounded_together(uint64_t);

}  // namespace taskd::rail::test
