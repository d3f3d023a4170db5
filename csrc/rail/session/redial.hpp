// The time of the next dial of one path: at once at first, then after pauses that grow up to a limit.
//
// It owns the pause, the refusals in a row, and whether the rail's interface works. Failure modes: a path over an
// interface that is down is not dialled until the interface is up again; then it is dialled at once. The side that
// accepts never dials.
//
// Pure: it is told what happened and when. Does not: dial, or give up (LossWatch does).
#pragma once

#include <cstdint>

#include "rail/session/retry.hpp"

namespace taskd::rail {

class Redial {
  public:
    Redial(bool dials, const Retry& retry, int64_t now_ns);

    bool is_due(int64_t now_ns) const { return due_ns_ <= now_ns; }

    // INT64_MAX: not before something happens.
    int64_t due_ns() const { return due_ns_; }

    bool dials() const { return dials_; }

    int refusals() const { return refusals_; }

    // The due dial has begun.
    void begun() { due_ns_ = INT64_MAX; }

    void failed(bool was_refused) { refusals_ = was_refused ? refusals_ + 1 : 0; }

    void connected();

    // Sets whether the interface works.
    void set_usable(bool usable) { is_usable_ = usable; }

    // The connection is gone, or none came. True: a time for the next dial is set.
    bool again(int64_t now_ns);

    void hurry() { pause_ns_ = 0; }

    // After this nothing is dialled any more.
    void stop();

  private:
    bool dials_;
    int64_t longest_pause_ns_;
    bool is_usable_ = true;
    int64_t due_ns_;
    int64_t pause_ns_ = 0;  // before the next dial
    int refusals_ = 0;      // in a row
};

}  // namespace taskd::rail
