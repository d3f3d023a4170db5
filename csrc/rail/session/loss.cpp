// How a session notices that the network is gone as a whole.
//
// Why: links are judged by each other (health.cpp), and where none brings anything there is nobody to compare
// with. But a process that is stopped has no part in that, for its system acknowledges: it is waited for, and a network
// that brings nothing is given the time that there is for lost rails. Whoever dials does it again, since a connection
// that was silent for long is slow to try. Whoever only waits has to say something to know.
//
// Does not: give up (check_hold() does), or look while nothing is on its way.
#include <cerrno>

#include "rail/session/session.hpp"

namespace taskd::rail {
namespace {

constexpr int kQuietLooks = 5;  // in a row: looks and not time, for all of this may have stood still

}  // namespace

void Session::look_for_loss(int64_t now) {
    if (!is_waiting()) {
        quiet_looks_ = 0;
        if (connected() > 0)
            silent_ns_ = 0;  // whatever was on its way has come through
        return;
    }
    if (now < look_for_loss_ns_)
        return;
    look_for_loss_ns_ = now + kLossLookNs;
    uint64_t brought = 0;
    uint64_t read = 0;
    size_t awaited = 0;
    for (const Slot& slot : slots_) {
        if (!slot.link || slot.link->is_broken())
            continue;
        brought += this->brought(slot);
        read += slot.link->bytes_read();
        awaited += sockets_.is_awaited(slot.link->fd()) ? 1 : 0;
    }
    const bool is_silent = awaited == connected() && brought == brought_;
    const bool is_quiet = outbox_.unacknowledged().empty() && awaited == 0 && read == read_;
    brought_ = brought;
    read_ = read;
    if (!is_silent)
        silent_ns_ = 0;
    if (!is_silent || quiet_looks_ == 0)
        moved_ns_ = is_silent ? now - kLossLookNs : now;  // the look before may be long ago: nothing had to move
    quiet_looks_ = is_silent || is_quiet ? quiet_looks_ + 1 : 0;
    if (quiet_looks_ < kQuietLooks || silent_ns_ != 0)
        return;
    quiet_looks_ = 0;
    if (is_quiet) {
        ask(now);
        return;
    }
    silent_ns_ = moved_ns_;
    for (Slot& slot : slots_) {
        slot.last_trouble = "nothing comes through";
        if (dials_ && slot.link)
            slot.link->cut(ETIMEDOUT);
    }
    host_.dirty(*this);
}

}  // namespace taskd::rail
