// How paths get a connection, and how all of them are closed.
//
// Why: one of two processes dials and the other one accepts, so that both know which connection counts. Owns nothing
// but the way to do it: when a path is dialled stands in the path (Redial). Failure modes: an interface that goes down
// takes its connection along at once; one that comes back is dialled over at once; after the end nobody is dialled any
// more.
//
// Does not: wait for a dial (the engine does), or decide that it is hopeless (LossWatch does).
#pragma once

#include <cstdint>
#include <string>

#include "rail/session/host.hpp"
#include "rail/session/paths.hpp"

namespace taskd::rail {

class Connections {
  public:
    Connections(BoundHost host, Paths& paths) : host_(host), paths_(paths) {}

    // Every path whose time has come.
    void dial(int64_t now_ns);
    // When that is next; INT64_MAX: not before something happens.
    int64_t next_ns() const;
    // The path has no connection any more, or got none.
    void dial_again(Path& path, int64_t now_ns);
    void failed(Path& path, int error, const std::string& trouble);
    void set_interface(size_t rail_here, bool usable, const std::string& reason);
    // The other side refuses on every rail, so many times in a row; never true for who does not dial.
    bool is_refused(int times) const;
    // Nobody is dialled any more.
    void stop();
    void close();

  private:
    const BoundHost host_;
    Paths& paths_;
};

}  // namespace taskd::rail
