// Which path the next frame takes.
//
// Why: a message ends with its last byte, so each frame goes where it would arrive first, and each path has only as
// much on its way as it delivers. Owns whose turn it is among paths that are alike, nothing else. Failure modes: a path
// that carries again without having proved it gets the next frame, however much better others are; where all good paths
// are full, a frame waits; only where there is no good one, it goes over one that an order has put out of use, and
// after that over a silent one.
//
// Pure: it sees views of paths, and asks for what costs a system call only when it matters. Does not: send, or look at
// a clock.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "rail/session/pace.hpp"

namespace taskd::rail {

// What the scheduler sees of one path.
struct PathView {
    // In the order in which they are taken.
    enum class Rung { kGood, kOutOfUse, kSilent, kNone };
    Rung rung = Rung::kNone;  // kNone: there is no connection, or it is broken
    bool is_connected = false;
    bool is_blocked = false;  // the system takes no more
    bool is_proved = false;   // since it was connected or ordered last it has carried something
    size_t budget = 0;        // bytes that this turn may still give to it
    size_t staged = 0;        // bytes that the system does not have yet
    const Pace* pace = nullptr;
};

class Scheduler {
  public:
    // How many bytes of a path the other end's system has not acknowledged; below 0: unknown.
    using Queued = std::function<long(size_t path)>;

    explicit Scheduler(Queued queued) : queued_(std::move(queued)) {}

    // Where `bytes` would arrive first; none: nowhere now.
    std::optional<size_t> choose(const std::vector<PathView>& paths, size_t bytes, bool is_large, const Yardstick& by);

  private:
    // One choice: what is to be sent, and among what.
    struct Question {
        const std::vector<PathView>& paths;
        size_t bytes;
        bool is_large;
        const Yardstick& by;
        bool is_alone;  // there is nothing to share
    };

    bool has_room(const Question& asked, size_t path) const;
    std::optional<size_t> unproved(const Question& asked) const;
    size_t in_turn(const Question& asked, size_t best);

    const Queued queued_;
    // Paths that are alike take turns with small frames.
    size_t turn_path_ = 0;
    size_t turn_bytes_ = 0;
};

}  // namespace taskd::rail
