// The scheduler chooses the path for the next frame.
//
// Why: a message is complete only with its last byte. So each frame goes where it would arrive first, and each path has
// only as much in flight as it delivers. It owns whose turn it is among paths that are alike, and nothing else. Failure
// modes: a path that carries again, but has not proved it yet, gets the next frame, however much better others are.
// Where all good paths are full, a frame waits. If there is no good path, the frame takes one that an order has put out
// of use; if there is none of these, it takes a silent one.
//
// Pure: it sees views of paths. It asks for values that cost a system call only when they matter. Does not: send, or
// read a clock.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "rail/session/pace.hpp"

namespace taskd::rail {

// What the scheduler sees of one path.
struct PathView {
    // From best to worst: a path of a later rung is used only if no earlier rung has a path.
    enum class Rung { kGood, kOutOfUse, kSilent, kNone };
    Rung rung = Rung::kNone;  // kNone: there is no connection, or it is broken
    bool is_connected = false;
    bool is_blocked = false;  // the system takes no more
    bool is_proved = false;   // it has carried something since it was last connected or ordered
    size_t budget = 0;        // bytes that the path may still get in this turn
    size_t staged = 0;        // bytes that the system has not taken yet
    const Pace* pace = nullptr;
};

class Scheduler {
  public:
    // How many bytes of a path the other end's system has not acknowledged; below 0: unknown.
    using Queued = std::function<long(size_t path)>;

    explicit Scheduler(Queued queued) : queued_(std::move(queued)) {}

    // The path on which `bytes` would arrive first; none: no path can take them now.
    std::optional<size_t> choose(const std::vector<PathView>& paths, size_t bytes, bool is_large, const Yardstick& by);

  private:
    // One choice: what is to be sent, and among which paths.
    struct Question {
        const std::vector<PathView>& paths;
        size_t bytes;
        bool is_large;
        const Yardstick& by;
        bool is_alone;  // there is no other path to share with
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
