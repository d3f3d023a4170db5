// Tests of csrc/native without Python. tests/native/test_sanitizers.py builds them with sanitizers.
//
// Without arguments it runs every test. Run as "worker HOW" it is one of the processes that the tests kill.
#include "check.hpp"

namespace taskd::native::test {
namespace {

int run_all() {
    std::vector<Test> tests = page_tests();
    for (const Test& test : life_tests())
        tests.push_back(test);
    for (const Test& test : tests) {
        const int64_t begin_ns = now_ns();
        test.run();
        std::printf("ok %s (%lld ms)\n", test.name,
                    static_cast<long long>((now_ns() - begin_ns) / kNanosecondsPerMillisecond));
        std::fflush(stdout);
    }
    std::printf("all %zu passed\n", tests.size());
    return 0;
}

}  // namespace
}  // namespace taskd::native::test

int main(int count, char** arguments) {
    using namespace taskd::native::test;
    return count == 2 && std::string(arguments[0]) == "worker" ? be_worker(arguments[1]) : run_all();
}
