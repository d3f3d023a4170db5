#include "rail/session/silence_watch.hpp"

#include <algorithm>
#include <cerrno>

namespace taskd::rail {

void SilenceWatch::look(int64_t now) {
    if (paths_.can_compare()) {
        for (Path& path : paths_) {
            if (path.is_live())
                look_at(path, now);
        }
        const auto wants_probe = [now](const Path& path) { return path.standing.wants_probe(now); };
        if (std::any_of(paths_.begin(), paths_.end(), wants_probe))
            prober_.ask(now);
    } else {
        for (Path& path : paths_) {
            if (!path.link() || path.state() == PathState::kUp)
                continue;
            path.standing.alone();
            paths_.show(path, now);
            host_.dirty();
        }
    }
    look_at_all(now);
}

void SilenceWatch::look_at(Path& path, int64_t now) {
    const Numbered* const oldest = oldest_on(path);
    const int64_t patience = path.pace().patience_ns();
    const int64_t witness = paths_.witness_beside(path);
    const auto is_late = [&](int64_t since_ns, uint64_t end) {
        const bool is_deaf = now - since_ns >= kDeafNs && witness > since_ns;
        return now - since_ns >= patience && (is_deaf || path.holds(end));
    };
    const auto& probe = path.probes.unanswered();
    const bool is_unanswered = probe && is_late(probe->at_ns, probe->end);
    if (is_unanswered || (oldest != nullptr && is_late(oldest->mark.sent_ns, oldest->end))) {
        path.standing.suspect(now);
        acknowledger_.demand();
        const bool has_other = paths_.has_up_beside(path);
        for (Numbered& frame : traffic_.outbox().unacknowledged()) {
            const bool is_old = path.carries(frame) && is_late(frame.mark.sent_ns, frame.end);
            if (!has_other || frame.is_acknowledged || frame.is_queued || !is_old)
                continue;
            add(path.record.hedged, 1);
            traffic_.outbox().send_again(frame);
        }
        host_.dirty();
    }
    if (path.state() != PathState::kSuspect)
        return;
    paths_.show(path, now);
    path.judge(now, witness);
    host_.dirty();
}

void SilenceWatch::look_at_all(int64_t now) {
    if (!is_waiting()) {
        loss_watch_.rest(paths_.connected() > 0);
        return;
    }
    if (!loss_watch_.is_due(now))
        return;
    const LossWatch::Finding finding = loss_watch_.look(sight(), now);
    if (finding == LossWatch::Finding::kQuiet)
        prober_.ask(now);
    if (finding != LossWatch::Finding::kSilent)
        return;
    for (Path& path : paths_) {
        path.trouble = "nothing comes through";
        // The side that dials cuts and dials again, because a connection that was silent for long is slow to try again.
        if (path.redial.dials() && path.link())
            path.link()->cut(ETIMEDOUT);
    }
    host_.dirty();
}

LossWatch::Sight SilenceWatch::sight() const {
    LossWatch::Sight sight;
    sight.connected = paths_.connected();
    sight.has_sent = !traffic_.outbox().unacknowledged().empty();
    for (const Path& path : paths_) {
        if (!path.is_live())
            continue;
        sight.brought += path.brought();
        sight.read += path.link()->bytes_read();
        sight.awaited += path.is_awaited() ? 1 : 0;
    }
    return sight;
}

const Numbered* SilenceWatch::oldest_on(const Path& path) const {
    for (const Numbered& frame : traffic_.outbox().unacknowledged()) {
        if (!frame.is_acknowledged && !frame.is_queued && path.carries(frame))
            return &frame;
    }
    return nullptr;
}

// Whether something is in flight in one direction or the other, as far as this side knows, and there are links for it.
bool SilenceWatch::is_waiting() const {
    const bool has_any = !traffic_.outbox().unacknowledged().empty() || !traffic_.inbox().is_empty();
    return has_any && paths_.connected() > 0;
}

int64_t SilenceWatch::next_ns(int64_t now) const {
    int64_t next = loss_watch_.next_ns(is_waiting(), now);
    if (!paths_.can_compare())
        return next;
    for (const Path& path : paths_) {
        if (!path.link())
            continue;
        next = std::min(next, path.standing.next_ns());
        const int64_t patience = path.pace().patience_ns();
        if (const auto& probe = path.probes.unanswered())
            next = std::min(next, std::max(probe->at_ns + patience, now + kLookAgainNs));
        if (const Numbered* const oldest = oldest_on(path))
            next = std::min(next, std::max(oldest->mark.sent_ns + patience, now + kLookAgainNs));
    }
    return next;
}

}  // namespace taskd::rail
