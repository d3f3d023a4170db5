// The stage of a session: open, leaving, parted, over. It only moves forward.
//
//     open ----> leaving ----> parted ----> over        any stage may be skipped
//
// It owns that stage, why the session is over, and in which manner the other side has left. Failure modes: both sides
// may leave at the same moment. A session that fails may hear afterwards that the other side has ended the epoch; then
// that is the reason that counts.
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
    enum class Parting { kNone, kAtOnce, kInGoodOrder };

    Life stage() const { return stage_; }

    bool is_over() const { return stage_ == Life::kOver; }

    // In which manner the other side has left, if it has.
    Parting parting() const { return parting_; }

    // Why it is over. Empty: it is not over.
    const std::string& failure() const { return failure_; }

    bool has_been_connected() const { return has_been_connected_; }

    // It is over because the other side has left in good order: all that it sent has arrived, and it needs nothing any
    // more.
    bool peer_has_left() const { return is_over() && parting_ == Parting::kInGoodOrder; }

    // It is over because the other side has left, in good order or by ending the epoch. So the other side had been in
    // it.
    bool heard_farewell() const { return is_over() && parting_ != Parting::kNone; }

    // The answer to a farewell may still come.
    bool lingers() const { return has_been_connected_ && !is_over(); }

    void connected() { has_been_connected_ = true; }

    void leave() { advance(Life::kLeaving); }

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
};

}  // namespace taskd::rail
