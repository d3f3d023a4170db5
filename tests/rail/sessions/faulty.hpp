// Sockets that fail on purpose. This layer over the system's sockets cuts, stalls, swallows, half-closes and slows
// down, as a seed decides.
//
// A fault strikes a connection after a number of bytes that the seed gives. Connections of the rail 127.0.0.2 fail in
// all ways. Others are only cut, half-closed or slow, so that at most one rail is silent. A process that is silent on
// all rails looks the same as a stopped process.
//
// A call can also throw, as it does when memory runs out or the system fails in an unexpected way.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <system_error>
#include <utility>

#include "rail/io/socket.hpp"

namespace taskd::rail::test {

class FaultySockets : public SocketLayer {
  public:
    enum Kind { kNone, kCut, kHalfClose, kShort, kStall, kSwallow };

    FaultySockets(uint64_t seed, int faults) : random_(seed), faults_(faults) {}

    enum Call { kDial, kAccept, kRead, kWrite, kQueued };

    // After `after` calls of this kind, the next `times` calls throw. With `times` 0 no call throws any more.
    void throw_in(Call call, int after, int times) {
        const std::lock_guard<std::mutex> hold(mutex_);
        throws_in_ = call;
        calls_before_ = after;
        throws_left_ = times;
        thrown_ = 0;
    }

    int thrown() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return thrown_;
    }

    // Sets a function that is called before every read, on the thread that reads. Null removes it.
    void before_reads(std::function<void()> hook) {
        const std::lock_guard<std::mutex> hold(mutex_);
        before_reads_ = std::move(hook);
    }

    void wait_until_read(size_t bytes) {
        std::unique_lock<std::mutex> hold(mutex_);
        has_read_.wait(hold, [&] { return bytes_read_ >= bytes; });
    }

    int dial(const SocketAddress& local, const SocketAddress& remote) override {
        may_throw(kDial);
        return plan(SocketLayer::dial(local, remote));
    }

    int accept(int listener) override {
        may_throw(kAccept);
        return plan(SocketLayer::accept(listener));
    }

    ssize_t read(int fd, const iovec* pieces, int count) override {
        may_throw(kRead);
        const ssize_t bytes = read_some(fd, pieces, count);
        if (bytes > 0) {
            const std::lock_guard<std::mutex> hold(mutex_);
            bytes_read_ += static_cast<size_t>(bytes);
            has_read_.notify_all();
        }
        return bytes;
    }

    ssize_t write(int fd, const iovec* pieces, int count) override {
        may_throw(kWrite);
        const Kind kind = now(fd);
        if (kind == kStall)
            return -EAGAIN;
        if (kind == kSwallow) {
            size_t bytes = 0;
            for (int index = 0; index < count; ++index)
                bytes += pieces[index].iov_len;
            return static_cast<ssize_t>(bytes);
        }
        if (kind == kShort && pieces[0].iov_len > 1) {
            const iovec some{pieces[0].iov_base, 1 + pieces[0].iov_len / 3};
            return spend(fd, SocketLayer::write(fd, &some, 1));
        }
        return spend(fd, SocketLayer::write(fd, pieces, count));
    }

    bool reads_short() const override { return true; }

    // On a silent rail, bytes that the system never saw count as queued.
    long queued(int fd) override {
        may_throw(kQueued);
        return is_silent(fd) ? 1 : SocketLayer::queued(fd);
    }

    bool is_awaited(int fd) override { return is_silent(fd) || SocketLayer::is_awaited(fd); }

    void close(int fd) override {
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            plans_.erase(fd);
        }
        SocketLayer::close(fd);
    }

    int struck() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return struck_;
    }

  private:
    struct Plan {
        Kind kind;
        int64_t bytes;
        bool is_struck;
    };

    ssize_t read_some(int fd, const iovec* pieces, int count) {
        const Kind kind = now(fd);
        if (kind == kStall)
            return -EAGAIN;
        if (kind == kShort) {
            const iovec some{pieces[0].iov_base, 1 + pieces[0].iov_len / 3};
            return spend(fd, SocketLayer::read(fd, &some, 1));
        }
        return spend(fd, SocketLayer::read(fd, pieces, count));
    }

    // Throws each kind of exception in turn.
    void may_throw(Call call) {
        int turn = 0;
        std::function<void()> hook;
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            if (call == kRead)
                hook = before_reads_;
            if (throws_left_ > 0 && throws_in_ == call && calls_before_-- <= 0) {
                --throws_left_;
                turn = ++thrown_;
            }
        }
        if (hook)
            hook();
        if (turn % 3 == 1)
            throw std::system_error(EMFILE, std::generic_category(), "the test says no");
        if (turn % 3 == 2)
            throw "the test says no";
        if (turn != 0)
            throw std::bad_alloc();
    }

    int plan(int fd) {
        if (fd < 0)
            return fd;
        sockaddr_in own{};
        socklen_t size = sizeof own;
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size);
        const std::lock_guard<std::mutex> hold(mutex_);
        if (faults_ <= 0)
            return fd;
        --faults_;
        const bool may_be_silent = ntohl(own.sin_addr.s_addr) == 0x7f000002;
        const int kinds = may_be_silent ? 6 : 4;
        plans_[fd] = {static_cast<Kind>(random_() % kinds),
                      static_cast<int64_t>(300 + random_() % (1 << (8 + random_() % 15))), false};
        return fd;
    }

    bool is_silent(int fd) {
        const Kind kind = now(fd);
        return kind == kStall || kind == kSwallow;
    }

    Kind now(int fd) {
        Kind kind = kNone;
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            const auto found = plans_.find(fd);
            if (found == plans_.end() || found->second.bytes > 0)
                return kNone;
            kind = found->second.kind;
            struck_ += found->second.is_struck ? 0 : 1;
            if (found->second.is_struck && (kind == kCut || kind == kHalfClose))
                return kNone;
            found->second.is_struck = true;
        }
        if (kind == kCut) {
            const linger at_once{1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            ::shutdown(fd, SHUT_RDWR);
        } else if (kind == kHalfClose) {
            ::shutdown(fd, SHUT_WR);
        }
        return kind;
    }

    ssize_t spend(int fd, ssize_t bytes) {
        if (bytes > 0) {
            const std::lock_guard<std::mutex> hold(mutex_);
            const auto found = plans_.find(fd);
            if (found != plans_.end())
                found->second.bytes -= bytes;
        }
        return bytes;
    }

    std::mutex mutex_;
    std::mt19937_64 random_;
    int faults_;
    int struck_ = 0;
    std::map<int, Plan> plans_;
    Call throws_in_ = kDial;
    int calls_before_ = 0;
    int throws_left_ = 0;
    int thrown_ = 0;
    std::function<void()> before_reads_;
    size_t bytes_read_ = 0;
    std::condition_variable has_read_;
};

}  // namespace taskd::rail::test
