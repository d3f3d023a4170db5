// The silence watch of a session notices that one path is silent, or all of them.
//
// Why: an operation waits for its last byte, but the system is patient with a silent connection for minutes. So each
// path is checked for what it has not answered (Standing judges it), and all paths together for a network that is gone
// (LossWatch judges that). It owns nothing; it only does these checks. Failure modes: what a silent path carries is
// sent again over another one. A suspect is probed again and again, and taken down only if another path answers. With a
// single connection, only the network as a whole can be found silent.
//
// Does not: give up the session (Session does), or check anything while nothing is in flight.
#pragma once

#include <cstdint>

#include "rail/session/acknowledger.hpp"
#include "rail/session/host.hpp"
#include "rail/session/loss_watch.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/prober.hpp"
#include "rail/session/traffic.hpp"

namespace taskd::rail {

class SilenceWatch {
  public:
    SilenceWatch(BoundHost host, Paths& paths, Traffic& traffic, Acknowledger& acknowledger, Prober& prober,
                 LossWatch& loss_watch)
        : host_(host),
          paths_(paths),
          traffic_(traffic),
          acknowledger_(acknowledger),
          prober_(prober),
          loss_watch_(loss_watch) {}

    void look(int64_t now_ns);
    int64_t next_ns(int64_t now_ns) const;

  private:
    void look_at(Path& path, int64_t now_ns);
    void look_at_all(int64_t now_ns);
    LossWatch::Sight sight() const;
    const Numbered* oldest_on(const Path& path) const;
    bool is_waiting() const;

    const BoundHost host_;
    Paths& paths_;
    Traffic& traffic_;
    Acknowledger& acknowledger_;
    Prober& prober_;
    LossWatch& loss_watch_;
};

}  // namespace taskd::rail
