// Memory that runs out on purpose, once, on one thread.
#pragma once

#include <atomic>

namespace taskd::rail::test {

// How many allocations of this thread still succeed before one fails. Below 0 all succeed.
extern thread_local int g_allocations_left;
// If this is false, all allocations succeed on every thread.
extern std::atomic<bool> g_may_run_out;

}  // namespace taskd::rail::test
