// Whether the network to one process is gone as a whole, and for how long that is borne.
//
// Why: paths are judged by each other (Standing), and where none brings anything there is nobody to compare with. But a
// process that is stopped has no part in that, for its system acknowledges: it is waited for, and a network that brings
// nothing is given the time that there is for lost rails. Whoever only waits has to say something to know.
//
// Owns the time since which all connections are lost, or there and silent, and the limits of TASKD_RETRY. Failure
// modes: this process itself may have stood still between two looks, so looks in a row are counted and not time; the
// look before may be long ago, and then silence counts from one look's time before.
//
// Pure: it is told what is seen and when. Does not: look while nothing is on its way, cut, dial or fail anything
// (Session does).
#pragma once

#include <cstddef>
#include <cstdint>

#include "rail/session/pace.hpp"
#include "rail/session/retry.hpp"

namespace taskd::rail {

class LossWatch {
  public:
    // All connections together, at one moment.
    struct Sight {
        size_t connected = 0;
        size_t awaited = 0;     // of them: bytes have left and are not acknowledged by the other end's system
        uint64_t brought = 0;   // bytes that the other end's system has
        uint64_t read = 0;      // bytes that came from there
        bool has_sent = false;  // something waits to be acknowledged by the other process
    };

    enum class Finding {
        kNothing,
        kQuiet,  // nothing comes, and nothing was said that could be answered: ask
        kSilent  // nothing gets through
    };
    enum class Verdict {
        kWait,
        kNoRetry,  // all is lost, and nobody wants to wait
        kTooLong
    };

    explicit LossWatch(const Retry& retry) : retry_(retry) {}

    // There is a new connection.
    void connected();

    // The last connection is gone. True: that is new.
    bool all_lost(int64_t now_ns);
    // Nothing is on its way: whatever was has come through, if there is a connection.
    void rest(bool is_connected);

    bool is_due(int64_t now_ns) const { return now_ns >= look_ns_; }

    Finding look(const Sight& sight, int64_t now_ns);

    // How often in a row each rail has to refuse before that means that nobody is there.
    int refusals_needed(bool is_leaving) const;
    Verdict judge(bool all_refuse, bool is_leaving, int64_t now_ns) const;

    // For how long nothing has come through; 0: it does.
    int64_t lost_for_ns(int64_t now_ns) const { return since_ns() == 0 ? 0 : now_ns - since_ns(); }

    // For how long a loss is borne, and a little more.
    int64_t limit_ns() const;
    // When it has to be looked at again; INT64_MAX: not for this.
    int64_t next_ns(bool is_waiting, int64_t now_ns) const;

  private:
    int64_t since_ns() const { return lost_ns_ != 0 ? lost_ns_ : silent_ns_; }

    int64_t rounds_ns() const { return retry_.count * nanoseconds(retry_.interval); }

    const Retry retry_;
    int64_t lost_ns_ = 0;    // since when there is no connection; 0: there is one, or there never was
    int64_t silent_ns_ = 0;  // the same of connections that are there and bring nothing, not one of them
    int64_t moved_ns_ = 0;   // the last look that was no part of it
    uint64_t brought_ = 0;   // by then
    uint64_t read_ = 0;
    int quiet_looks_ = 0;  // in a row
    int64_t look_ns_ = 0;  // the next
};

}  // namespace taskd::rail
