// Questions and answers: whether a path to the other process works, asked of all paths at once.
//
// Why: so the silence of one can be told from the silence of all, and their latencies compared. Owns when all were
// asked last. Failure modes: an answer to what nobody has asked is ignored; whoever asks may have missed what went over
// a path that is silent, so the answer comes with all acknowledgements.
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
    // It has answered on this path.
    void hear(Path& path, const FrameHeader& pong);
    // Something that this path was given at `sent_ns`, and no other, is there.
    void heard(Path& path, int64_t sent_ns, int64_t now_ns);

  private:
    const BoundHost host_;
    Paths& paths_;
    Acknowledger& acknowledger_;
    int64_t asked_ns_ = 0;
};

}  // namespace taskd::rail
