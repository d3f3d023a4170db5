// The loss watch: it decides whether the whole network to one process is gone, and how long that is tolerated.
//
// Why: paths are judged by comparison (Standing), and where no path delivers anything there is nothing to compare with.
// A stopped process does not look like this, because its system still acknowledges bytes: that process is waited for. A
// network that delivers nothing gets the time that is allowed for lost rails. A process that only waits has to send
// something to find out.
//
// It owns the time since which all connections are lost, or are there and silent, and the limits of TASKD_RETRY.
// Failure modes: this process itself may have been stopped between two checks, so checks in a row are counted and not
// time. The last check may be long ago; then silence counts from one check interval before now.
//
// Pure: it is told what is seen and when. Does not: look while nothing is in flight, or cut, dial or fail anything
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
        size_t awaited = 0;     // of these: bytes have left and the other end's system has not acknowledged them
        uint64_t brought = 0;   // bytes that the other end's system has
        uint64_t read = 0;      // bytes that came from the other end
        bool has_sent = false;  // something waits for an acknowledgement of the other process
    };

    enum class Finding {
        kNothing,
        kQuiet,  // nothing comes, and nothing was sent that could be answered: ask
        kSilent  // nothing gets through
    };
    enum class Verdict {
        kWait,
        kNoRetry,  // all is lost, and retry is disabled
        kTooLong
    };

    explicit LossWatch(const Retry& retry) : retry_(retry) {}

    // There is a new connection.
    void connected();

    // The last connection is gone. True: this is new.
    bool all_lost(int64_t now_ns);
    // Nothing is in flight. If there is a connection, everything that was in flight has arrived.
    void rest(bool is_connected);

    bool is_due(int64_t now_ns) const { return now_ns >= look_ns_; }

    Finding look(const Sight& sight, int64_t now_ns);

    // How often in a row each rail has to refuse before that means that the other process is gone.
    int refusals_needed(bool is_leaving) const;
    Verdict judge(bool all_refuse, bool is_leaving, int64_t now_ns) const;

    // Whether nothing more can come from a process that has ended. If a connection is only silent, bytes may still be
    // on their way for as long as a loss is held. Nobody dials any more, so the rounds of dials are not waited for.
    bool is_final(int64_t now_ns) const { return lost_ns_ != 0 || lost_for_ns(now_ns) > nanoseconds(retry_.hold); }

    // For how long nothing has come through; 0: something does come through.
    int64_t lost_for_ns(int64_t now_ns) const { return since_ns() == 0 ? 0 : now_ns - since_ns(); }

    // For how long a loss is tolerated, and a little more.
    int64_t limit_ns() const;
    // When to check again; INT64_MAX: no time is needed for this.
    int64_t next_ns(bool is_waiting, int64_t now_ns) const;

  private:
    int64_t since_ns() const { return lost_ns_ != 0 ? lost_ns_ : silent_ns_; }

    int64_t rounds_ns() const { return retry_.count * nanoseconds(retry_.interval); }

    const Retry retry_;
    int64_t lost_ns_ = 0;    // since when there is no connection; 0: there is one, or there never was
    int64_t silent_ns_ = 0;  // since when connections exist and none of them delivers anything
    int64_t moved_ns_ = 0;   // the last check that was not part of the silence
    uint64_t brought_ = 0;   // at the last check
    uint64_t read_ = 0;
    int quiet_looks_ = 0;  // in a row
    int64_t look_ns_ = 0;  // the next
};

}  // namespace taskd::rail
