// Tests of receives over real sockets: from any rank, and into memory that is larger than the message. main.cpp lists
// and runs them.
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void from_anybody_everything_comes(uint64_t seed);
void a_message_may_be_shorter_than_its_place(uint64_t seed);

}  // namespace taskd::rail::test
