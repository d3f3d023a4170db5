#include "rail/session/scheduler.hpp"

#include <algorithm>
#include <cstdint>

#include "rail/io/frame.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kSmallTurnBytes = 64 << 10;
constexpr int64_t kAlikeNs = 20'000;
constexpr double kMuchSlower = 8;

}  // namespace

bool Scheduler::has_room(const Question& asked, size_t path) const {
    const PathView& view = asked.paths[path];
    if (view.is_blocked || view.budget == 0)
        return false;
    if (!asked.is_large || asked.is_alone || view.pace->has_room(asked.by))
        return true;
    // What has left the rail waits for the other process. That says nothing about the rail, and must not starve it. A
    // rail that is known to be slow gets no more than it was seen to deliver.
    if (view.pace->rate(asked.by) * kMuchSlower < asked.by.fastest)
        return false;
    const long queued = queued_(path);
    return view.pace->in_flight() < kWidestWindow && queued >= 0 &&
           static_cast<size_t>(queued) + view.staged < view.pace->window() / 2;
}

// A rail that carries again gets the next frame, whatever is known about it. Bytes are the proof that the manager waits
// for, on every pair of ranks; and where there is little to send, the other rails would carry all of it.
std::optional<size_t> Scheduler::unproved(const Question& asked) const {
    for (size_t path = 0; path < asked.paths.size(); ++path) {
        const PathView& view = asked.paths[path];
        if (view.rung == PathView::Rung::kGood && !view.is_proved && view.pace->in_flight() < kShortestPiece &&
            has_room(asked, path))
            return path;
    }
    return std::nullopt;
}

std::optional<size_t> Scheduler::choose(const std::vector<PathView>& paths, size_t bytes, bool is_large,
                                        const Yardstick& by) {
    const auto is_connected = [](const PathView& view) { return view.is_connected; };
    const bool is_alone = std::count_if(paths.begin(), paths.end(), is_connected) <= 1;
    const Question asked{paths, bytes, is_large, by, is_alone};
    if (bytes > sizeof(FrameHeader)) {
        if (const auto first = unproved(asked))
            return first;
    }
    auto rung = PathView::Rung::kNone;
    for (const PathView& view : paths)
        rung = std::min(rung, view.rung);
    if (rung == PathView::Rung::kNone)
        return std::nullopt;
    std::optional<size_t> best;
    int64_t least_ns = INT64_MAX;
    for (size_t path = 0; path < paths.size(); ++path) {
        if (paths[path].rung != rung || !has_room(asked, path))
            continue;
        const int64_t delay_ns = paths[path].pace->delay_ns(bytes, by);
        if (delay_ns < least_ns) {
            least_ns = delay_ns;
            best = path;
        }
    }
    return is_large || !best ? best : in_turn(asked, *best);
}

// Small frames take the best path, or one that is about as good, each for a while. So every rail that works shows that
// it does.
size_t Scheduler::in_turn(const Question& asked, size_t best) {
    const size_t count = asked.paths.size();
    if (count == 1)
        return best;
    const int64_t least_ns = asked.paths[best].pace->delay_ns(asked.bytes, asked.by);
    for (size_t step = turn_bytes_ < kSmallTurnBytes ? 0 : 1; step <= count; ++step) {
        const size_t path = (turn_path_ + step) % count;
        const PathView& view = asked.paths[path];
        if (view.rung != asked.paths[best].rung || !has_room(asked, path) ||
            view.pace->delay_ns(asked.bytes, asked.by) > least_ns + least_ns / 2 + kAlikeNs)
            continue;
        turn_bytes_ = (step == 0 ? turn_bytes_ : 0) + asked.bytes;
        turn_path_ = path;
        return path;
    }
    return best;
}

}  // namespace taskd::rail
