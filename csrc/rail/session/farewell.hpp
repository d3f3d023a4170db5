// The last words of a session: what this side says on each connection, and why the other side has left.
//
// Why: a peer may still be in the same operation that is over here. So a process that leaves in good order says its
// last word only when everything it sent has been acknowledged. The last word follows all acknowledgements that are
// due, on every link. The connections stay until the other side has answered: a connection that is closed with unread
// bytes is reset, and a reset destroys what is in flight, the last word included. The process that hears the last word
// knows that all data of this member has arrived, and that this member needs nothing any more. Data that has arrived is
// still given to operations that ask for it later. Only operations that wait for what can never come fail (seat.cpp).
// When an epoch is aborted, the last word is said at once: all operations are over anyway, and memory must be free on
// return.
//
// It owns the words of both sides, and on which connections this side has said its own. Failure modes: if an answer
// does not fit into the connection, the end of the connection says the same. Where a frame is half written, nothing is
// said, and the other side finds the epoch stale.
//
// Does not: know when everything is acknowledged (Session does), or limit the time of a farewell (the engine does).
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
    // Sets what say() will say.
    void prepare(const std::string& reason) { own_ = reason; }

    // A new connection: nothing has been said on it.
    void renew(const Path& path) { said_ &= ~bit(path); }

    // Says farewell in good order, once on each connection: behind everything that the link still has to write, and
    // behind the acknowledgement of what has arrived.
    void say(Paths& paths, Acknowledger& acknowledger);
    // Gives up what is under way, and says so. The word is written now or never.
    void say_at_once(Paths& paths, const Acknowledger& acknowledger, const std::string& reason) const;

    // ---- the other side's
    // Answers if an answer is needed, and cuts the link. Returns in which manner the other side has left.
    Lifecycle::Parting hear(Path& path, const FrameHeader& bye, const char* payload, const Acknowledger& acknowledger);

    const std::string& reason() const { return reason_; }

  private:
    bool is_open(const Path& path) const { return path.is_live() && (said_ & bit(path)) == 0; }

    static uint32_t bit(const Path& path) { return uint32_t{1} << path.rails.index; }

    std::string own_;
    uint32_t said_ = 0;  // one bit for each path
    std::string reason_;
};

}  // namespace taskd::rail
