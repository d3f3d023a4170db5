// Tests of the parts of csrc/rail that stand alone. tests/rail/test_parts.py builds them with sanitizers.
//
// Without arguments it runs every test. "digests N" prints the digests of texts of 0 to N bytes, for a comparison with
// another implementation. "watch INTERFACE=ADDRESS..." prints the changes of these interfaces until its input ends.
#include <poll.h>
#include <unistd.h>

#include "check.hpp"
#include "rail/io/interfaces.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail::test {

std::string hex(const std::string& bytes) {
    std::string text;
    for (const char byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

namespace {

int run_all() {
    size_t count = 0;
    for (const auto& tests : {key_tests(), counter_tests(), tally_tests()}) {
        for (const Test& test : tests) {
            test.run();
            std::printf("ok %s\n", test.name);
            std::fflush(stdout);
            ++count;
        }
    }
    std::printf("all %zu passed\n", count);
    return 0;
}

int print_digests(int most) {
    for (int length = 0; length <= most; ++length) {
        std::string text;
        for (int index = 0; index < length; ++index)
            text.push_back(static_cast<char>(7 * index + length));
        std::printf("%s %s\n", hex(sha256(text)).c_str(), hex(hmac_sha256(text, "job")).c_str());
    }
    return 0;
}

int watch(int count, char** arguments) {
    std::vector<Watched> watched;
    for (int index = 0; index < count; ++index) {
        const std::string text = arguments[index];
        const size_t middle = text.find('=');
        watched.push_back({text.substr(0, middle), text.substr(middle + 1)});
    }
    InterfaceWatch watch(watched);
    for (size_t index = 0; index < watched.size(); ++index)
        std::printf("%zu %s: %s\n", index, watch.usable(index) ? "usable" : "lost", watch.reason(index).c_str());
    std::printf("watching %s\n", watch.fd() < 0 ? "nothing" : "all");
    std::fflush(stdout);
    for (;;) {
        pollfd sources[] = {{watch.fd(), POLLIN, 0}, {0, POLLIN, 0}};
        poll(sources, 2, -1);
        if (sources[1].revents != 0)
            return 0;
        for (const InterfaceChange& change : watch.take())
            std::printf("%zu %s: %s\n", change.index, change.usable ? "usable" : "lost", change.reason.c_str());
        std::fflush(stdout);
    }
}

}  // namespace
}  // namespace taskd::rail::test

int main(int count, char** arguments) {
    using namespace taskd::rail::test;
    const std::string what = count > 1 ? arguments[1] : "";
    if (what == "digests")
        return print_digests(std::atoi(arguments[2]));
    return what == "watch" ? watch(count - 2, arguments + 2) : run_all();
}
