// The lists of tests of reductions and collectives.
#pragma once

#include <vector>

#include "parts/check.hpp"

namespace taskd::rail::test {

std::vector<Test> reduce_tests();
std::vector<Test> collective_tests();
std::vector<Test> message_tests();
std::vector<Test> failure_tests();

// Runs random operations of two groups, many at a time, over two rails. Their sockets fail `faults` times.
void over_engines(int ranks, int rounds, size_t most_bytes, int faults, unsigned seed);

}  // namespace taskd::rail::test
