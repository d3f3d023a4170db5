#include "rail/session/connections.hpp"

#include <algorithm>
#include <cerrno>

namespace taskd::rail {

void Connections::dial(int64_t now) {
    for (Path& path : paths_) {
        if (!path.redial.is_due(now) || path.state() != PathState::kDown)
            continue;
        path.redial.begun();
        path.standing.dialling();
        paths_.show(path, now);
        host_.dial(path.rails.index);
    }
}

int64_t Connections::next_ns() const {
    int64_t next = INT64_MAX;
    for (const Path& path : paths_) {
        if (path.state() == PathState::kDown)
            next = std::min(next, path.redial.due_ns());
    }
    return next;
}

void Connections::dial_again(Path& path, int64_t now) {
    if (path.redial.again(now))
        host_.wake_by(path.redial.due_ns());
}

void Connections::failed(Path& path, int error, const std::string& trouble) {
    const int64_t now = host_.now_ns();
    path.standing.dial_failed();
    path.trouble = trouble;
    path.redial.failed(error == ECONNREFUSED);
    set_error(path.record, error, now);
    paths_.show(path, now);
}

void Connections::set_interface(size_t rail_here, bool usable, const std::string& reason) {
    for (Path& path : paths_) {
        if (path.rails.here != rail_here)
            continue;
        path.redial.set_usable(usable);
        path.trouble = reason;
        if (!usable && path.link()) {
            path.link()->cut(ENETDOWN);
            host_.dirty();
        } else if (usable && path.state() == PathState::kDown) {
            path.redial.hurry();
            dial_again(path, host_.now_ns());
        }
    }
}

bool Connections::is_refused(int times) const {
    return std::all_of(paths_.begin(), paths_.end(),
                       [times](const Path& path) { return path.redial.dials() && path.redial.refusals() >= times; });
}

void Connections::stop() {
    for (Path& path : paths_)
        path.redial.stop();
}

void Connections::close() {
    stop();
    for (Path& path : paths_) {
        if (!path.link())
            continue;
        host_.unwatch(*path.link());
        path.detach();
        set_state(path.record, RailState::kDown, host_.now_ns());
    }
}

}  // namespace taskd::rail
