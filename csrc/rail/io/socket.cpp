#include "rail/io/socket.hpp"

#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace taskd::rail {
namespace {

constexpr int kBacklog = 1024;
// The last line of defence: silence is noticed much earlier, by the age of bytes that were not acknowledged.
constexpr int kUserTimeoutMs = 10'000;
constexpr int kKeepaliveSeconds = 10;
constexpr int kKeepaliveProbes = 3;

void set(int fd, int level, int option, int value) {
    // If a system does not know an option, only that line of defence is lost.
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

void tune(int fd) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveSeconds);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveSeconds);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

int close_and_tell(int fd) {
    const int error = errno;
    ::close(fd);
    return -error;
}

}  // namespace

int SocketAddress::port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                      : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void SocketAddress::set_port(int port) {
    if (family() == AF_INET6)
        reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(static_cast<uint16_t>(port));
    else
        reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(static_cast<uint16_t>(port));
}

SocketAddress parse_address(const std::string& text, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(text.c_str(), nullptr, &hints, &found) != 0 || found == nullptr)
        throw std::invalid_argument("'" + text + "' is no numeric address: give one like 10.0.0.1 or fd00::1.");
    SocketAddress address;
    std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    address.bytes = found->ai_addrlen;
    freeaddrinfo(found);
    address.set_port(port);
    return address;
}

std::string words_of(int error) {
    const std::string text = std::strerror(error);
    if (error == EMFILE)
        return text + " in this process: raise its limit (ulimit -n)";
    if (error == ENFILE)
        return text + " in this system: raise its limit (sysctl fs.file-max)";
    return text;
}

int SocketLayer::dial(const SocketAddress& local, const SocketAddress& remote) {
    const int fd = ::socket(remote.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    tune(fd);
    // With this, many connections may leave from one address: the port is chosen when both ends are known.
    set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    SocketAddress from = local;
    from.set_port(0);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&from.storage), from.bytes) != 0)
        return close_and_tell(fd);
    const auto* to = reinterpret_cast<const sockaddr*>(&remote.storage);
    if (::connect(fd, to, remote.bytes) != 0 && errno != EINPROGRESS)
        return close_and_tell(fd);
    return fd;
}

int SocketLayer::listen(const SocketAddress& local) {
    const int fd = ::socket(local.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (local.port() != 0)
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&local.storage), local.bytes) != 0 || ::listen(fd, kBacklog) != 0)
        return close_and_tell(fd);
    return fd;
}

int SocketLayer::accept(int listener) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return -errno;
    tune(fd);
    return fd;
}

ssize_t SocketLayer::read(int fd, const iovec* pieces, int count) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t done = ::recvmsg(fd, &message, MSG_DONTWAIT);
    return done < 0 ? -errno : done;
}

ssize_t SocketLayer::write(int fd, const iovec* pieces, int count) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t done = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return done < 0 ? -errno : done;
}

long SocketLayer::queued(int fd) {
    int bytes = 0;
    return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : -errno;
}

bool SocketLayer::is_awaited(int fd) {
    tcp_info info{};
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    // TCP probes a receiver without room from time to time. A first probe may just be in flight.
    return info.tcpi_unacked > 0 || info.tcpi_probes > 1;
}

void SocketLayer::close(int fd) {
    ::close(fd);
}

uint64_t SocketLayer::connection_of(int fd, bool is_dialler) {
    SocketAddress here;
    SocketAddress there;
    here.bytes = there.bytes = sizeof here.storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.bytes) != 0 ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.bytes) != 0)
        return 0;
    const auto dialler = static_cast<uint64_t>((is_dialler ? here : there).port());
    return dialler << 16 | static_cast<uint64_t>((is_dialler ? there : here).port());
}

int SocketLayer::error_of(int fd) {
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

int SocketLayer::port_of(int fd) {
    SocketAddress address;
    address.bytes = sizeof address.storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
        return -errno;
    return address.port();
}

SocketLayer& system_sockets() {
    static SocketLayer layer;
    return layer;
}

}  // namespace taskd::rail
