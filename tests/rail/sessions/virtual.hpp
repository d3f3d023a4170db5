// Two sessions in a simulated world: rails of any speed, a processor of any speed, and a clock that is a number.
//
// Why: time decides how much a rail gets, and how soon it is found to be slow, silent or back. On a real clock the
// results depend on what else the machine does. Here they are the same each time, and a virtual second passes in less
// than a real one.
//
// Does not: inject socket faults (faulty.hpp does). A silent rail is one whose speed is 0.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rail/session/session.hpp"
#include "team.hpp"

namespace taskd::rail::test {

constexpr int64_t kTickNs = 20'000;
constexpr double kEndless = 1e12;

// One direction of a rail.
struct Wire {
    double rate = 100e6;  // bytes per second
    int64_t latency_ns = 50'000;
    double credit = 0;
    uint64_t carried = 0;
};

struct VirtualRail {
    Wire ways[2];          // by the number of the sending side
    bool is_there = true;  // whether connections can be made
};

// Bytes that wait, oldest first.
class Waiting {
  public:
    size_t size() const { return bytes_.size() - begin_; }

    void push(const char* from, size_t count) { bytes_.append(from, count); }

    const char* front() const { return bytes_.data() + begin_; }

    void pop(size_t count) {
        begin_ += count;
        if (begin_ == bytes_.size() || begin_ > (size_t{1} << 20)) {
            bytes_.erase(0, begin_);
            begin_ = 0;
        }
    }

  private:
    std::string bytes_;
    size_t begin_ = 0;
};

// One end of a connection.
struct VirtualEnd {
    size_t rail = 0;
    int side = 0;
    uint64_t connection = 0;
    Waiting out;
    Waiting in;
    size_t flying_bytes = 0;
    size_t unconfirmed = 0;  // has arrived, but its acknowledgement cannot come back
    std::deque<std::pair<int64_t, std::string>> flying;
    bool is_over = false;  // the other end is closed
};

class VirtualSockets : public SocketLayer {
  public:
    static constexpr size_t kBuffer = 2 << 20;

    ssize_t read(int fd, const iovec* pieces, int count) override {
        VirtualEnd& end = ends.at(fd);
        if (end.in.size() == 0 || end.rail == unheard)
            return end.is_over ? 0 : -EAGAIN;
        size_t done = 0;
        for (int index = 0; index < count; ++index) {
            const size_t some = std::min(pieces[index].iov_len, end.in.size());
            std::memcpy(pieces[index].iov_base, end.in.front(), some);
            end.in.pop(some);
            done += some;
        }
        return static_cast<ssize_t>(done);
    }

    ssize_t write(int fd, const iovec* pieces, int count) override {
        VirtualEnd& end = ends.at(fd);
        size_t done = 0;
        for (int index = 0; index < count; ++index) {
            const size_t some = std::min(pieces[index].iov_len, kBuffer - std::min(kBuffer, end.out.size()));
            end.out.push(static_cast<const char*>(pieces[index].iov_base), some);
            done += some;
        }
        return done == 0 ? -EAGAIN : static_cast<ssize_t>(done);
    }

    long queued(int fd) override { return static_cast<long>(ends.at(fd).out.size() + awaited(fd)); }

    bool is_awaited(int fd) override { return awaited(fd) > 0 || (ends.at(fd).out.size() > 0 && room_for(fd) > 0); }

    size_t awaited(int fd) const { return ends.at(fd).flying_bytes + ends.at(fd).unconfirmed; }

    // Returns how much the other end's system would still take.
    size_t room_for(int fd) const {
        const auto other = ends.find(fd ^ 1);
        const size_t used = ends.at(fd).flying_bytes + (other == ends.end() ? 0 : other->second.in.size());
        return kBuffer - std::min(kBuffer, used);
    }

    // The descriptors of both ends differ in the last bit. Bytes that the other end has not read yet stay there.
    void close(int fd) override {
        if (const auto other = ends.find(fd ^ 1); other != ends.end() && !is_unnoticed)
            other->second.is_over = true;
        ends.erase(fd);
    }

    uint64_t connection_of(int fd, bool) override { return ends.at(fd).connection; }

    std::map<int, VirtualEnd> ends;
    bool is_unnoticed = false;  // the other end does not hear of a close
    size_t unheard = SIZE_MAX;  // on this rail all bytes arrive, but none can be read
};

// The operation that both sides repeat: each sends messages to the other, and receives as many bytes back.
class Exchange : public Party {
  public:
    Exchange(uint64_t sequence, size_t messages) : sequence_(sequence), left_(2 * messages) {}

    void sent(int, uint32_t) override { --left_; }

    void arrived(int, uint32_t) override { --left_; }

    void beginning(int, uint32_t) override {}

    void offered(int, uint32_t) override {}

    void differs(int, const Form&) override { CHECK(!"they are the same"); }

    void failed(const Failure&) override { CHECK(!"nothing is lost for good"); }

    void woken(int64_t) override {}

    uint64_t sequence() const override { return sequence_; }

    const Form& form() const override { return form_; }

    bool is_over() const { return left_ == 0; }

  private:
    const uint64_t sequence_;
    size_t left_;
    const Form form_{};
};

class World;

// A process with its session.
class Side : public SessionHost {
  public:
    Side(World& world, int number, size_t rails);

    int64_t now_ns() const override;

    void post(Event event) override { events_.push_back(std::move(event)); }

    void dirty(Session&) override { is_dirty_ = true; }

    void wake_by(int64_t time_ns) override { armed_ns_ = std::min(armed_ns_, time_ns); }

    void watch(Session&, Link& link) override { watched_[link.fd()] = &link; }

    void unwatch(Link& link) override { watched_.erase(link.fd()); }

    void dial(Session&, size_t slot) override;

    void changed(Session& session) override { CHECK(may_fail || !session.life().is_over()); }

    // Runs the process for one moment.
    void live();

    Session& session() { return *session_; }

    // When the current operation began.
    int64_t began_ns() const { return began_ns_; }

    bool may_fail = false;
    int64_t stopped_until_ns = 0;
    double bytes_per_second = kEndless;                   // how much it can read
    size_t turn_bytes = 16 << 10;                         // read from one link before it looks at the next
    std::vector<size_t> messages;                         // sizes, for the operations from the next one on
    std::vector<std::pair<int64_t, int64_t>> operations;  // begin and end of each

  private:
    void read();
    void operate();
    void settle();

    World& world_;
    const int number_;
    Counters counters_{8};
    std::map<int, Link*> watched_;
    std::deque<Event> events_;
    bool is_dirty_ = false;
    int64_t armed_ns_ = INT64_MAX;
    double credit_ = 0;
    uint64_t turns_ = 0;
    std::unique_ptr<Exchange> exchange_;
    std::vector<std::unique_ptr<Exchange>> past_;
    uint64_t sequence_ = 0;
    int64_t began_ns_ = 0;
    std::vector<char> out_;
    std::vector<std::vector<char>> in_;
    std::unique_ptr<Session> session_;  // the first to be destroyed
};

class World {
  public:
    explicit World(size_t rails = 2);

    void run(int64_t for_ns);
    void connect(size_t rail);
    // One side dials. A little later the connection is made, or the dial fails.
    void dial(size_t rail);
    // Cuts both ends of a rail's connection, and both sides know it.
    void reset(size_t rail);

    void set_rate(size_t rail, double rate) { rails[rail].ways[0].rate = rails[rail].ways[1].rate = rate; }

    // Returns the rail's share of the bytes that all rails carried from side 0 since the last call.
    double share(size_t rail);

    int64_t now_ns = 1'000'000'000;
    std::vector<VirtualRail> rails;
    VirtualSockets sockets;
    std::unique_ptr<Side> sides[2];

  private:
    void carry(int fd, VirtualEnd* to, Wire& wire, const Wire& back);

    int last_fd_ = 100;
    std::vector<std::pair<int64_t, size_t>> dials_;
    std::vector<uint64_t> carried_;
};

}  // namespace taskd::rail::test
