// The base of all operations of a group: messages in lanes, an end, a deadline, and sentences about failure.
//
// A lane is an ordered sequence of pieces of one range of memory, to or from one member. An operation opens its lanes
// and sets how far each may go. This class posts the pieces a few ahead, so that neither the transport's lists nor
// staging memory grow with the size of a tensor. It counts them, and the operation ends when its last piece has ended.
//
// The transport may call back within a call. So callbacks only note what happened, and one loop acts on it.
//
// Does not: know what an operation computes (reduction.hpp, exchange.hpp), or lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rail/collectives/group.hpp"
#include "rail/collectives/staging.hpp"
#include "rail/transport.hpp"

namespace taskd::rail {

namespace tuning {

constexpr size_t kSmallBytes = 128 << 10;     // of all ranks together: every rank sends everything to every rank
constexpr size_t kSmallestChunk = 128 << 10;  // above kEagerBytes, so that chunks are read into place
constexpr size_t kLargestChunk = 1 << 20;
constexpr size_t kStagingBytes = 8 << 20;  // of one operation; more only if the number of ranks needs it
constexpr uint32_t kChunksPerSlice = 4;    // at least, so that reducing and receiving overlap
constexpr uint32_t kStagedAhead = 4;       // chunks of each member that may arrive before one is reduced
constexpr uint32_t kAhead = 8;             // pieces posted to or from one member where no staging is needed
constexpr int64_t kDescribeAfterNs = 500000000;
constexpr int64_t kDescribeAtMostNs = 8000000000;

}  // namespace tuning

class Operation;

// What the operations of one group share.
class Circle {
  public:
    Circle(Transport& transport, std::string identity, int me, int size)
        : transport(transport), identity(std::move(identity)), me(me), size(size) {}

    virtual ~Circle() = default;

    // The operation is over and makes no more calls; `failure` is null if it succeeded.
    virtual void ended(Operation& operation, const Failure* failure) = 0;

    Transport& transport;
    const std::string identity;
    const int me;
    const int size;
    Staging staging;
};

// First what the ranks contribute, then the result.
enum Phase : uint32_t { kContribution = 0, kResult = 1 };

struct Lane {
    char* memory = nullptr;
    size_t bytes = 0;
    size_t chunk = 0;
    uint32_t count = 0;   // of pieces
    uint32_t ring = 0;    // piece i shares memory with piece i + ring; 0: no piece shares memory
    uint32_t window = 0;  // pieces under way at a time
    uint32_t limit = 0;   // pieces that may be posted by now
    uint32_t next = 0;    // the next piece to post
    uint32_t open = 0;    // posted and not ended

    char* at(uint32_t index) const { return memory + (ring == 0 ? index : index % ring) * chunk; }

    size_t bytes_at(uint32_t index) const { return index + 1 < count ? chunk : bytes - (count - 1) * chunk; }

    bool is_done() const { return next == count && open == 0; }
};

// How many chunks a range is cut into: at least one, even for 0 bytes. 0 if `chunk` is 0 (then there is no range).
uint32_t pieces_of(size_t bytes, size_t chunk);

class Operation : public Party {
  public:
    Operation(Circle& circle, uint64_t sequence, const Form& form);

    uint64_t sequence() const override { return sequence_; }

    const Form& form() const override { return form_; }

    // Begins the operation; it may end within the call. `timeout_ns` 0: no timeout.
    void start(int64_t timeout_ns);
    // Ends the operation at once with this failure, unless it has ended.
    void fail(Failure failure);

    bool is_over() const { return over_; }

    uint64_t handle = 0;  // the group's own
    Done done;

    void sent(int member, uint32_t part) override;
    void arrived(int member, uint32_t part) override;
    void beginning(int member, uint32_t part) override;

    void offered(int, uint32_t) override {}

    void differs(int member, const Form& theirs) override;

    void failed(const Failure& failure) override { fail(failure); }

    void woken(int64_t now_ns) override;

  protected:
    // Opens lanes and posts what may go at once.
    virtual void begin() = 0;

    // Something has ended: do what is possible now, such as moving limits. Called until it changes nothing.
    virtual void advance() {}

    virtual void on_sent(int, Phase, uint32_t) {}

    virtual void on_arrived(int, Phase, uint32_t) {}

    virtual void on_beginning(int, Phase, uint32_t) {}

    // Gives back memory that is not the caller's.
    virtual void let_go() {}

    // Makes the transport forget this operation.
    virtual void withdraw() { circle_.transport.forget(*this); }

    // "all_reduce of 100 float32, #17 of group g".
    virtual std::string title() const;
    virtual std::vector<int> awaited() const;

    virtual bool is_numbered() const { return true; }

    Lane& out(Phase phase, int member) { return lanes_[index_of(phase, member, 0)]; }

    Lane& in(Phase phase, int member) { return lanes_[index_of(phase, member, 1)]; }

    // Opens a lane of pieces of `chunk` bytes. None of them may go yet; see set_limit().
    void open_lane(Lane& lane, void* memory, size_t bytes, size_t chunk, uint32_t window);
    // Opens a lane with the whole range as one piece that may go at once.
    void open_whole(Lane& lane, const void* memory, size_t bytes);
    void set_limit(Lane& lane, uint32_t limit);
    // The receiver does not need the memory of this piece any more.
    void release(int member, Phase phase, uint32_t index);

    // Besides messages, `count` other things must end before the operation can end; call one_ended() for each.
    void expect(uint64_t count) { unfinished_ += count; }

    void one_ended() { --unfinished_; }

    // Acts on what has happened, unless this loop is running already.
    void run();

    void ask_again() { again_ = true; }

    static uint32_t part_of(Phase phase, uint32_t index) { return index << 1 | phase; }

    Circle& circle_;
    bool announces_ = false;

  private:
    size_t index_of(Phase phase, int member, int direction) const {
        return (static_cast<size_t>(member) * 2 + phase) * 2 + static_cast<size_t>(direction);
    }

    void post();
    bool post_one(int member, Phase phase);
    void end(const Failure* failure);

    const uint64_t sequence_;
    const Form form_;
    std::vector<Lane> lanes_;  // by member, phase and direction
    uint64_t unfinished_ = 0;
    int64_t started_ns_ = 0;
    int64_t deadline_ns_ = 0;
    int64_t patience_ns_ = tuning::kDescribeAfterNs;
    bool busy_ = false;
    bool again_ = false;
    bool may_post_ = false;
    bool differs_ = false;  // and is about to end because of that
    bool over_ = false;
};

}  // namespace taskd::rail
