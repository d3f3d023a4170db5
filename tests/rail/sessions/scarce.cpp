// The program's own operators new and delete. They have their own source file, because a compiler that sees them takes
// them for the standard ones.
#include "scarce.hpp"

#include <cstdlib>
#include <new>

namespace taskd::rail::test {

thread_local int g_allocations_left = -1;
std::atomic<bool> g_may_run_out{false};

}  // namespace taskd::rail::test

void* operator new(size_t bytes) {
    using namespace taskd::rail::test;
    if (g_allocations_left >= 0 && g_may_run_out && g_allocations_left-- == 0)
        throw std::bad_alloc();
    if (void* const memory = std::malloc(bytes))
        return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
    std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}
