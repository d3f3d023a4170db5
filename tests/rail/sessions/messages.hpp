// Messages that are taken from whoever sends one first, over real sockets. Listed and run by main.cpp.
#pragma once

#include <cstdint>

namespace taskd::rail::test {

void from_anybody_everything_comes(uint64_t seed);

}  // namespace taskd::rail::test
