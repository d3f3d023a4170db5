// The connections of a session: how paths get one, and how all of them are closed.
//
// Why: one of the two processes dials and the other one accepts, so that both know which connection counts. It owns
// nothing; when a path is dialled is kept in the path (Redial). Failure modes: an interface that goes down loses its
// connection at once. An interface that comes back is dialled over at once. After the end nothing is dialled any more.
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

    // Dials every path whose time has come.
    void dial(int64_t now_ns);
    // When the next dial is due; INT64_MAX: not before something happens.
    int64_t next_ns() const;
    // The path's connection is gone, or none came.
    void dial_again(Path& path, int64_t now_ns);
    void failed(Path& path, int error, const std::string& trouble);
    void set_interface(size_t rail_here, bool usable, const std::string& reason);
    // Whether the other side has refused on every rail this many times in a row; never true on the side that accepts.
    bool is_refused(int times) const;
    // After this nothing is dialled any more.
    void stop();
    void close();

  private:
    const BoundHost host_;
    Paths& paths_;
};

}  // namespace taskd::rail
