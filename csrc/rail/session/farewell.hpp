// The last words of a session: what this side says on each connection, and why the other side has parted.
//
// Why: a peer may still be in the very operation that is over here. So who leaves in good order says the last word only
// when everything that was sent has been acknowledged, behind all acknowledgements that are due, on every link; and the
// connections stay until the other side has answered. Closed earlier, a connection with unread bytes is reset, and a
// reset destroys what is on its way, the last word included. Who hears it knows: all that this member sent is here, and
// it needs nothing any more. What is here is still given to operations that ask for it later; only those fail that wait
// for what can never come (seat.cpp). At once, when an epoch is aborted: all of its operations are over anyway, and
// memory must be free on return.
//
// Owns both sides' words, and on which connections this side's were said. Failure modes: an answer that does not fit
// into the connection is said by its end; where a frame is half written nothing is said, and the other side finds the
// epoch stale.
//
// Does not: know when everything is acknowledged (Session does), or bound the time of a farewell (the engine does).
#pragma once

#include <cstdint>
#include <string>

#include "rail/session/acknowledger.hpp"
#include "rail/session/lifecycle.hpp"
#include "rail/session/paths.hpp"

namespace taskd::rail {

class Farewell {
  public:
    // ---- this side's
    // What say() will say.
    void prepare(const std::string& reason) { own_ = reason; }

    // A new connection: nothing was said on it.
    void renew(const Path& path) { said_ &= ~bit(path); }

    // In good order, on each connection once: behind whatever the link has to write before, and behind what has come.
    void say(Paths& paths, Acknowledger& acknowledger);
    // What was under way is given up. It is written now or never.
    void say_at_once(Paths& paths, const Acknowledger& acknowledger, const std::string& reason) const;

    // ---- the other side's
    // Answers what is to be answered, and cuts the link. Returns in which manner the other side has parted.
    Lifecycle::Parting hear(Path& path, const FrameHeader& bye, const char* payload, const Acknowledger& acknowledger);

    const std::string& reason() const { return reason_; }

  private:
    bool is_open(const Path& path) const { return path.is_live() && (said_ & bit(path)) == 0; }

    static uint32_t bit(const Path& path) { return uint32_t{1} << path.rails.index; }

    std::string own_;
    uint32_t said_ = 0;  // a bit for each path
    std::string reason_;
};

}  // namespace taskd::rail
