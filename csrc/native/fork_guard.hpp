// The fork guard: keeps beat pages and connections out of forked children.
//
// Why: a forked helper (a data-loader worker, say) inherits every mapping and descriptor of its parent. Through the
// mapping it could write into the parent's slot. Through the sockets it keeps a dead rank's connections open, so that
// the peers never see them end. A fork handler takes both away in every child, before anything else of the child runs.
//
// A descriptor is not closed but replaced by /dev/null under the same number. Objects of the child (a Python socket)
// still believe that they own the number, and will close it one day. If the number had been free meanwhile, they would
// close something else. A number whose file is no longer the registered one is left alone.
//
// Does not: see vfork(), posix_spawn() or a bare clone(), which run no such handlers. They lead to exec(), where
// close-on-exec does the work.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::native {

// The child's handler touches only fixed tables of atomics, because any lock may be held at the moment of the fork.
constexpr int kGuardedDescriptors = 1 << 16;
constexpr size_t kGuardedMappings = 4096;

// Throws std::invalid_argument for a descriptor that is not open or has a number past the table.
void close_on_fork(int fd);

// Undoes close_on_fork; call it before closing. A number that was never registered is fine.
void keep_on_fork(int fd);

// Registers a page-sized shared mapping. Every child gets private zeroes at its address instead. Throws
// std::runtime_error if the table is full.
void hide_on_fork(void* mapping);
void show_on_fork(void* mapping) noexcept;

// Returns the number of forks between the first process and this one. A thread started under another number is not
// ours.
uint64_t fork_generation() noexcept;

}  // namespace taskd::native
