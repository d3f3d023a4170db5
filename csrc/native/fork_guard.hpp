// What a fork() must not take along: beat pages and connections.
//
// Why: a forked helper (a data-loader worker, say) inherits every mapping and descriptor of its parent. Through the
// mapping it could write into the parent's slot; through the sockets it keeps a dead rank's connections open, so that
// the peers never see them end. A handler run in every fork()'s child, before anything else of the child, takes both
// away.
//
// A descriptor is not closed but replaced by /dev/null under the same number. Objects of the child (a Python socket)
// still believe they own the number and will close it one day; had it been free meanwhile, they would close something
// else. A number whose file is no longer the one that was registered is left alone.
//
// Does not: see vfork(), posix_spawn() or a bare clone(), which run no such handlers; they lead to exec(), where
// close-on-exec does the work.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::native {

// The child's handler touches only fixed tables of atomics, since any lock may be held at the moment of the fork.
constexpr int kGuardedDescriptors = 1 << 16;
constexpr size_t kGuardedMappings = 4096;

// Throws std::invalid_argument for a descriptor that is not open or has a number past the table.
void close_on_fork(int fd);

// Undoes close_on_fork; call it before closing. A number that was never registered is fine.
void keep_on_fork(int fd);

// A page-sized shared mapping, to be replaced at its address by private zeroes in every child. Throws
// std::runtime_error if the table is full.
void hide_on_fork(void* mapping);
void show_on_fork(void* mapping) noexcept;

// How many forks lie between the first process and this one: a thread started under another number is not ours.
uint64_t fork_generation() noexcept;

}  // namespace taskd::native
