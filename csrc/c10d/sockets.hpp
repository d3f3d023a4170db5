// The TCP sockets of one inner group, remembered so that they can be shut down, and never anybody else's.
//
// Why: gloo has no abort. Shutting its sockets down is the only way to end its pending operations, but a file
// descriptor is a number that the process reuses: between then and now it may have become the user's own connection.
// So a mark holds the inode and both addresses, and they are compared on a duplicate, which cannot be reused meanwhile.
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

// Marks for those of `fds` that are connected sockets now.
std::vector<SocketMark> mark_sockets(const std::vector<int>& fds);

// Shuts down, both ways, those that are still what they were. Returns how many.
int shut_down(const std::vector<SocketMark>& marks) noexcept;

}  // namespace taskd::comm
