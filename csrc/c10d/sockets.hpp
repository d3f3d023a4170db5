// The TCP sockets of one inner group, remembered so that these, and never any others, can be shut down.
//
// Why: gloo has no abort. Shutting its sockets down is the only way to end its pending operations. But a file
// descriptor is a number that the process reuses: meanwhile it may have become a connection of the user. So a mark
// holds the inode and both addresses. They are compared on a duplicate of the descriptor, which cannot be reused
// meanwhile.
//
// Does not: find the sockets (taskd/comm/cpu.py does), nor close them (their owner does).
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <vector>

namespace taskd::comm {

struct SocketMark {
    int fd = -1;
    ino_t inode = 0;
    sockaddr_storage local{};
    sockaddr_storage remote{};
};

// Returns marks for those of `fds` that are connected sockets now.
std::vector<SocketMark> mark_sockets(const std::vector<int>& fds);

// Shuts down, in both directions, the sockets that are still the same as when marked. Returns how many.
int shut_down(const std::vector<SocketMark>& marks) noexcept;

}  // namespace taskd::comm
