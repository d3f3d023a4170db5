#include "rail/session/paths.hpp"

#include <algorithm>
#include <string>

namespace taskd::rail {
namespace {

PathView::Rung rung_of(const Path& path) {
    if (!path.is_live())
        return PathView::Rung::kNone;
    if (path.state() != PathState::kUp)
        return PathView::Rung::kSilent;
    return path.orders.is_in_use() ? PathView::Rung::kGood : PathView::Rung::kOutOfUse;
}

PathView view_of(const Path& path) {
    PathView view;
    view.rung = rung_of(path);
    view.is_connected = path.link() != nullptr;
    view.pace = &path.pace();
    if (view.rung == PathView::Rung::kNone)
        return view;
    view.is_blocked = path.link()->blocked();
    view.is_proved = is_proved(path.record);
    view.budget = path.budget;
    view.staged = path.link()->staged();
    return view;
}

}  // namespace

size_t Paths::connected() const {
    return static_cast<size_t>(std::count_if(begin(), end(), [](const Path& path) { return path.link() != nullptr; }));
}

Yardstick Paths::yardstick(int64_t now) const {
    Yardstick by{now, 0, 0};
    for (const Path& path : paths_) {
        if (!path.is_up())
            continue;
        by.fastest = std::max(by.fastest, path.pace().rate());
        const int64_t trip = path.pace().round_trip_ns();
        if (trip > 0 && (by.quickest_ns == 0 || trip < by.quickest_ns))
            by.quickest_ns = trip;
    }
    return by;
}

const std::vector<PathView>& Paths::views() {
    views_.clear();
    for (const Path& path : paths_)
        views_.push_back(view_of(path));
    return views_;
}

int64_t Paths::witness_beside(const Path& path) const {
    int64_t witness_ns = 0;
    for (const Path& other : paths_) {
        if (&other != &path && other.link())
            witness_ns = std::max(witness_ns, other.probes.witness_ns());
    }
    return witness_ns;
}

bool Paths::has_up_beside(const Path& path) const {
    return std::any_of(begin(), end(), [&](const Path& other) { return &other != &path && other.is_up(); });
}

void Paths::show(Path& path, int64_t now) const {
    RailState state = RailState::kUp;
    if (path.state() == PathState::kDown)
        state = RailState::kDown;
    else if (path.state() == PathState::kDialling)
        state = RailState::kProbing;
    else if (path.state() == PathState::kSuspect && witness_beside(path) > path.standing.since_ns())
        state = RailState::kSuspect;
    set_state(path.record, state, now);
}

void Paths::tell(const FrameHeader& news) {
    for (Path& path : paths_) {
        if (path.is_live())
            path.link()->stage(news, std::string());
    }
}

void Paths::cut(int error) {
    for (Path& path : paths_) {
        if (path.link())
            path.link()->cut(error);
    }
}

// ---- Borrowers

void Paths::let_go(const Outgoing& message) {
    for (Path& path : paths_) {
        if (path.link())
            path.link()->let_go(&message);
    }
}

void Paths::let_go(const MessageKey& key) {
    for (Path& path : paths_) {
        // Its frame is acknowledged when it ends, because nobody needs it again.
        if (path.link() && path.link()->writes(key))
            path.link()->redirect(true);
    }
}

bool Paths::is_written(const MessageKey& key) const {
    return std::any_of(begin(), end(), [&](const Path& path) { return path.link() && path.link()->writes(key); });
}

}  // namespace taskd::rail
