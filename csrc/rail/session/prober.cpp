#include "rail/session/prober.hpp"

#include <string>

namespace taskd::rail {

void Prober::ask(int64_t now) {
    asked_ns_ = now;
    const FrameHeader ping = acknowledger_.bare(FrameType::kPing);
    for (Path& path : paths_) {
        if (path.is_live())
            path.probe(ping, now);
    }
    host_.dirty();
}

void Prober::answer(Path& path, const FrameHeader& ping) {
    path.orders.there = ping.part != kUnwanted;
    acknowledger_.say(*path.link());
    FrameHeader pong = acknowledger_.bare(FrameType::kPong);
    pong.offset = ping.offset;
    path.link()->stage(pong, std::string());
    host_.dirty();
}

void Prober::hear(Path& path, const FrameHeader& pong) {
    const auto asked_ns = static_cast<int64_t>(pong.offset);
    const int64_t now = host_.now_ns();
    if (asked_ns <= 0 || asked_ns > now)
        return;  // no probe was sent at that time
    path.pong(asked_ns, now);
    heard(path, asked_ns, now);
    host_.dirty();
}

void Prober::heard(Path& path, int64_t sent_ns, int64_t now) {
    const bool was_up = path.state() == PathState::kUp;
    path.answered(sent_ns, now);
    if (!was_up)
        paths_.show(path, now);
}

}  // namespace taskd::rail
