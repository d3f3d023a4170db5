// How a session takes over from one path what another brings sooner.
//
// Why: an operation waits for its last byte, so a rail that is slow, or silent without a word, costs what its last
// piece costs. Two things tell, long before silence by itself would: something that was sent later over another path
// has been answered while a frame is later than twice what was expected of its path; or, at the end of a message, a
// path that has nothing to do would bring the frame sooner than the one that has it is expected to. The frame goes out
// again, and what comes second is dropped by its number. But only if the rail has not brought it: what the other end's
// system has waits for a busy process, and a copy would only be more work for that one.
//
// Owns the time of the next look at what is on its way. Failure modes: the path that was overtaken gets nothing new
// until it has answered a probe behind everything it carries. A slow rail is then measured by what it carried and never
// given more than it drains; a silent one waits for judgement (SilenceWatch). What has arrived and is not acknowledged
// is not sent again, but asked for.
//
// Does not: send (Sender does), or take anything down.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rail/session/acknowledger.hpp"
#include "rail/session/host.hpp"
#include "rail/session/outbox.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/prober.hpp"

namespace taskd::rail {

class Overtaking {
  public:
    Overtaking(BoundHost host, Paths& paths, Outbox& outbox, Acknowledger& acknowledger, Prober& prober)
        : host_(host), paths_(paths), outbox_(outbox), acknowledger_(acknowledger), prober_(prober) {}

    // True: some frames are to go out again.
    bool look();

    // A frame has left that will be late at this time.
    void expect(int64_t late_ns) { look_at_ns_ = std::min(look_at_ns_, late_ns); }

    // INT64_MAX: there is nothing to look at.
    int64_t due_ns() const { return look_at_ns_; }

  private:
    Path* carrier_of(const Numbered& frame);
    bool is_overtaken(const Numbered& frame, const Path& slow, const Yardstick& by, bool* asks);
    bool is_slower(const Numbered& frame, const Path& slow, size_t taken, const Yardstick& by) const;
    void be_late(Path& path, int64_t now_ns);

    const BoundHost host_;
    Paths& paths_;
    Outbox& outbox_;
    Acknowledger& acknowledger_;
    Prober& prober_;
    int64_t look_at_ns_ = INT64_MAX;  // when the next frame that is on its way will be late
};

}  // namespace taskd::rail
