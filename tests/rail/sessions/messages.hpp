// Tests of receives that take the first message that any rank sends, over real sockets. main.cpp lists and runs them.
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void from_anybody_everything_comes(uint64_t seed);

}  // namespace taskd::rail::test
