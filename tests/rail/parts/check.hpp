// A check that says where it failed, and the list of tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (false)

namespace taskd::rail::test {

struct Test {
    const char* name;
    void (*run)();
};

std::vector<Test> key_tests();
std::vector<Test> counter_tests();
std::vector<Test> tally_tests();

std::string hex(const std::string& bytes);

}  // namespace taskd::rail::test
