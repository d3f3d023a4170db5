// See sockets.hpp.
#include "c10d/sockets.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace taskd::comm {

namespace {

// Everything is zeroed first, so that two marks of the same socket compare equal as bytes.
bool describe(int fd, SocketMark& mark) noexcept {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode))
        return false;
    mark.inode = info.st_ino;
    socklen_t length = sizeof mark.local;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&mark.local), &length) != 0)
        return false;
    length = sizeof mark.remote;
    return getpeername(fd, reinterpret_cast<sockaddr*>(&mark.remote), &length) == 0;
}

bool same(const SocketMark& one, const SocketMark& other) noexcept {
    return one.inode == other.inode && std::memcmp(&one.local, &other.local, sizeof one.local) == 0 &&
           std::memcmp(&one.remote, &other.remote, sizeof one.remote) == 0;
}

}  // namespace

std::vector<SocketMark> mark_sockets(const std::vector<int>& fds) {
    std::vector<SocketMark> marks;
    for (const int fd : fds) {
        SocketMark mark;
        std::memset(&mark.local, 0, sizeof mark.local);
        std::memset(&mark.remote, 0, sizeof mark.remote);
        mark.fd = fd;
        if (describe(fd, mark))
            marks.push_back(mark);
    }
    return marks;
}

int shut_down(const std::vector<SocketMark>& marks) noexcept {
    int count = 0;
    for (const SocketMark& mark : marks) {
        const int twin = fcntl(mark.fd, F_DUPFD_CLOEXEC, 0);
        if (twin < 0)
            continue;
        SocketMark now;
        std::memset(&now.local, 0, sizeof now.local);
        std::memset(&now.remote, 0, sizeof now.remote);
        if (describe(twin, now) && same(mark, now) && ::shutdown(twin, SHUT_RDWR) == 0)
            ++count;
        ::close(twin);
    }
    return count;
}

}  // namespace taskd::comm
