// The program's own operators, in a unit of their own: where a compiler sees them, it takes them for the standard's.
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
