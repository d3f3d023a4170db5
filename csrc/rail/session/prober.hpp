// Probes and their answers: whether a path to the other process works, asked on all paths at once.
//
// Why: the silence of one path can then be told from the silence of all, and their latencies can be compared. It owns
// the time when all paths were last asked. Failure modes: an answer to a question that nobody asked is ignored. A side
// that asks may have missed what went over a silent path, so the answer comes with all acknowledgements.
//
// Does not: know when to ask, or judge by the answers.
#pragma once

#include <cstdint>

#include "rail/session/acknowledger.hpp"
#include "rail/session/host.hpp"
#include "rail/session/paths.hpp"

namespace taskd::rail {

class Prober {
  public:
    Prober(BoundHost host, Paths& paths, Acknowledger& acknowledger)
        : host_(host), paths_(paths), acknowledger_(acknowledger) {}

    void ask(int64_t now_ns);

    int64_t asked_ns() const { return asked_ns_; }

    // The other side asks on this path.
    void answer(Path& path, const FrameHeader& ping);
    // The other side has answered on this path.
    void hear(Path& path, const FrameHeader& pong);
    // Something that was sent at `sent_ns`, on this path only, has arrived.
    void heard(Path& path, int64_t sent_ns, int64_t now_ns);

  private:
    const BoundHost host_;
    Paths& paths_;
    Acknowledger& acknowledger_;
    int64_t asked_ns_ = 0;
};

}  // namespace taskd::rail
