// Overtaking: a session sends a frame again over a path that brings it sooner than the first one.
//
// Why: an operation waits for its last byte, so a rail that is slow, or silent without notice, costs what its last
// piece costs. Two signs show this long before silence alone would. First: a frame is later than twice what was
// expected of its path, and something that was sent later over another path has been answered. Second: at the end of a
// message, an idle path would bring the frame sooner than its own path is expected to. The frame is then sent again,
// and the copy that arrives second is dropped by its number. But this happens only if the rail has not delivered the
// frame: bytes that the other end's system has already wait for a busy process, and a copy would only give that process
// more work.
//
// It owns the time of the next check of what is in flight. Failure modes: the path that was overtaken gets nothing new
// until it has answered a probe behind everything it carries. A slow rail is then measured by what it carried, and is
// never given more than it drains. A silent rail waits for judgement (SilenceWatch). What has arrived and is not
// acknowledged is not sent again; instead the other side is asked for it.
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

    // True: some frames have to be sent again.
    bool look();

    // A frame has left that will be late from this time on.
    void expect(int64_t late_ns) { look_at_ns_ = std::min(look_at_ns_, late_ns); }

    // INT64_MAX: there is nothing to check.
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
    int64_t look_at_ns_ = INT64_MAX;  // when the next frame in flight will be late
};

}  // namespace taskd::rail
