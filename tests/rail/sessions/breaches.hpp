// Tests of a session whose peer breaks the rules. The connection ends, and the session touches no memory that is no
// longer its own (breaches.cpp).
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void what_is_acknowledged_too_early_is_read_no_more(uint64_t);
void a_small_message_keeps_its_size(uint64_t);
void a_small_message_comes_once(uint64_t);
void a_copy_of_a_small_message_needs_no_room(uint64_t);
void a_large_message_has_no_part_twice(uint64_t);
void memory_that_goes_is_written_no_more(uint64_t);

}  // namespace taskd::rail::test
