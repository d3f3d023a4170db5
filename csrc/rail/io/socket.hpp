// The system calls of the transport on sockets, behind a seam.
//
// Why a seam: what the transport is for happens when sockets fail, and sockets fail on purpose only in a layer that can
// cut, stall and reorder them by a seed. Everything here is a plain call of the system's; nothing blocks.
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

// From a numeric address (IPv6 with or without a scope). Throws std::invalid_argument with one sentence.
SocketAddress parse_address(const std::string& text, int port);

// The system's words for an errno, and the cure where that is known.
std::string words_of(int error);

// A result below zero is -errno.
class SocketLayer {
  public:
    virtual ~SocketLayer() = default;

    // A socket on its way from `local` (its port is ignored) to `remote`.
    virtual int dial(const SocketAddress& local, const SocketAddress& remote);
    virtual int listen(const SocketAddress& local);
    virtual int accept(int listener);
    virtual ssize_t read(int fd, const iovec* pieces, int count);
    virtual ssize_t write(int fd, const iovec* pieces, int count);

    // Whether a read may bring less than there is. The system's never does, so that less than asked for means that
    // nothing is left and news will come; of any other layer, only -EAGAIN says so.
    virtual bool reads_short() const { return false; }

    // Bytes that the other end's system has not acknowledged.
    virtual long queued(int fd);

    // Whether any of them have left; the others stay here while the other end has no room.
    virtual bool is_awaited(int fd);
    virtual void close(int fd);

    // A name of the connection that both its ends have; 0: there is none.
    virtual uint64_t connection_of(int fd, bool is_dialler);

    // How a dial has ended: 0 or an errno.
    int error_of(int fd);
    int port_of(int fd);
};

SocketLayer& system_sockets();

}  // namespace taskd::rail
