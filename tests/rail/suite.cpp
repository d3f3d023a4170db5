// Tests of reductions and collectives. tests/rail/test_collectives.py builds them with sanitizers.
#include "suite.hpp"

#include <cstdio>

// Without arguments it runs over a fake transport. "engines RANKS ROUNDS MOST_BYTES FAULTS SEED" uses real sockets.
int main(int count_of_words, char** words) {
    using namespace taskd::rail::test;
    if (count_of_words == 7) {
        const auto number = [&](int index) { return std::atoi(words[index]); };
        over_engines(number(2), number(3), static_cast<size_t>(number(4)), number(5), static_cast<unsigned>(number(6)));
        std::printf("passed\n");
        return 0;
    }
    size_t count = 0;
    for (const auto& tests : {reduce_tests(), collective_tests(), message_tests(), failure_tests()})
        for (const Test& test : tests) {
            test.run();
            std::printf("ok %s\n", test.name);
            std::fflush(stdout);
            ++count;
        }
    std::printf("%zu passed\n", count);
}
