// The stage of a session: open, leaving, parted, over. It only moves forward.
//
//     open ----> leaving ----> parted ----> over        any stage may be skipped
//
// It owns that stage, why the session is over, and in which manner the other side has left. Failure modes: both sides
// may leave at the same moment. A session that fails may hear afterwards that the other side has ended the epoch; then
// that is the reason that counts. A process may end without a last word; then its node says that it has ended.
//
// Pure: it is told what happened. Does not: close anything, or tell anybody (Session does).
#pragma once

#include <algorithm>
#include <string>

namespace taskd::rail {

enum class Life {
    kOpen,     // connections are made and used
    kLeaving,  // this process wants to leave, and says so as soon as everything it sent has arrived
    kParted,   // the other side has said its last word; the connections will be taken away next
    kOver      // failed or ended: nothing is sent any more
};

class Lifecycle {
  public:
    enum class Parting { kNone, kAtOnce, kInGoodOrder, kUnsaid };

    Life stage() const { return stage_; }

    bool is_over() const { return stage_ == Life::kOver; }

    // In which manner the other side has left, if it has.
    Parting parting() const { return parting_; }

    // Why it is over. Empty: it is not over.
    const std::string& failure() const { return failure_; }

    bool has_been_connected() const { return has_been_connected_; }

    // How the other process has ended, if somebody else has said so. Empty: nobody has. What it sent may still be on
    // its way, as long as there is a connection.
    const std::string& ended() const { return ended_; }

    // The other side needs nothing any more, and nothing that it sent is on its way. That is no fault of a rail.
    bool has_parted_well() const { return parting_ == Parting::kInGoodOrder || parting_ == Parting::kUnsaid; }

    // It is over because the other side has left so.
    bool peer_has_left() const { return is_over() && has_parted_well(); }

    // It is over because the other side has left: in good order, by ending the epoch, or by ending its process. So the
    // other side had been in it.
    bool heard_farewell() const { return is_over() && parting_ != Parting::kNone; }

    // The answer to a farewell may still come.
    bool lingers() const { return has_been_connected_ && !is_over(); }

    void connected() { has_been_connected_ = true; }

    void leave() { advance(Life::kLeaving); }

    // The first word counts.
    void hear_of_end(const std::string& how) {
        if (ended_.empty())
            ended_ = how;
    }

    // Its process has made a new connection since, so it lives.
    void lives() { ended_.clear(); }

    void part(Parting manner) {
        parting_ = manner;
        advance(Life::kParted);
    }

    // The last reason counts.
    void fail(const std::string& text) {
        failure_ = text;
        advance(Life::kOver);
    }

    // The first reason counts.
    void end(const std::string& text) {
        if (!is_over())
            fail(text);
    }

  private:
    void advance(Life to) { stage_ = std::max(stage_, to); }

    Life stage_ = Life::kOpen;
    Parting parting_ = Parting::kNone;
    bool has_been_connected_ = false;
    std::string failure_;
    std::string ended_;
};

}  // namespace taskd::rail
