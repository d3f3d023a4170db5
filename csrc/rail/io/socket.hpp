// The transport's system calls on sockets, behind an interface that can be replaced.
//
// Why: the purpose of the transport shows when sockets fail. Sockets fail on purpose only in a layer that can cut,
// stall and reorder them by a seed. Everything here is a plain system call, and nothing blocks.
//
// Does not: know what is sent.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>

namespace taskd::rail {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;

    int family() const { return storage.ss_family; }

    int port() const;
    void set_port(int port);
};

// Makes an address from numeric text (IPv6 with or without a scope). Throws std::invalid_argument with one sentence.
SocketAddress parse_address(const std::string& text, int port);

// The system's text for an errno, and the cure where it is known.
std::string words_of(int error);

// The system calls. A result below zero is -errno.
class SocketLayer {
  public:
    virtual ~SocketLayer() = default;

    // Returns a socket that is connecting from `local` (its port is ignored) to `remote`.
    virtual int dial(const SocketAddress& local, const SocketAddress& remote);
    virtual int listen(const SocketAddress& local);
    virtual int accept(int listener);
    virtual ssize_t read(int fd, const iovec* pieces, int count);
    virtual ssize_t write(int fd, const iovec* pieces, int count);

    // Whether a read may return less than there is. The system's read never does: if it returns less than was asked
    // for, nothing is left, and the system will report new data. In any other layer only -EAGAIN says so.
    virtual bool reads_short() const { return false; }

    // Bytes that the other end's system has not acknowledged.
    virtual long queued(int fd);

    // Whether any of these bytes have left. The others stay here as long as the other end has no room.
    virtual bool is_awaited(int fd);
    virtual void close(int fd);

    // A name of the connection that both of its ends know; 0: there is none.
    virtual uint64_t connection_of(int fd, bool is_dialler);

    // The result of a dial: 0 or an errno.
    int error_of(int fd);
    int port_of(int fd);
};

SocketLayer& system_sockets();

}  // namespace taskd::rail
