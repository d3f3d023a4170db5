// The lists of tests of reductions and collectives.
#pragma once

#include <vector>

#include "parts/check.hpp"

namespace taskd::rail::test {

std::vector<Test> reduce_tests();
std::vector<Test> collective_tests();
std::vector<Test> message_tests();
std::vector<Test> failure_tests();

}  // namespace taskd::rail::test
