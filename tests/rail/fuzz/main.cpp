// fuzz TARGET SEED MILLISECONDS: runs rounds of one target, each from its own seed, until the time is over.
//
// fuzz TARGET SEED: runs that one round again. A round that fails prints its seed, so that it can be repeated.
#include <chrono>

#include "fuzz.hpp"

namespace {

uint64_t g_seed = 0;

// Sanitizers end the process by themselves. They call this function last.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

void tell_seed() {
    std::fprintf(stderr, "\nthe round with seed %llu failed\n", static_cast<unsigned long long>(g_seed));
}

}  // namespace

int main(int count, char** arguments) {
    using namespace taskd::rail::test;
    const std::map<std::string, void (*)(Random&)> targets = {
        {"link", fuzz_link}, {"handshake", fuzz_handshake}, {"texts", fuzz_texts}, {"session", fuzz_session}};
    if (count < 3 || targets.count(arguments[1]) == 0) {
        std::fprintf(stderr, "usage: fuzz link|handshake|texts|session SEED [MILLISECONDS]\n");
        return 2;
    }
    std::atexit([] {
        if (g_seed != 0)
            tell_seed();
    });
    if (__sanitizer_set_death_callback != nullptr)
        __sanitizer_set_death_callback(tell_seed);
    const auto target = targets.at(arguments[1]);
    const uint64_t first = std::strtoull(arguments[2], nullptr, 10);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(count > 3 ? std::atoi(arguments[3]) : 0);
    uint64_t rounds = 0;
    do {
        g_seed = first + rounds;
        Random random(g_seed);
        target(random);
        ++rounds;
    } while (std::chrono::steady_clock::now() < until);
    g_seed = 0;
    std::printf("%llu rounds\n", static_cast<unsigned long long>(rounds));
    return 0;
}
