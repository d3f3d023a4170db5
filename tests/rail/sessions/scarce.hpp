// Memory that runs out on purpose, once, on one thread.
#pragma once

#include <atomic>

namespace taskd::rail::test {

// Of this thread: how many allocations still succeed before one does not; below 0: all do.
extern thread_local int g_allocations_left;
// Else all do on every thread.
extern std::atomic<bool> g_may_run_out;

}  // namespace taskd::rail::test
