// The engine of this process as Python sees it. Groups over rails are made by it.
//
// Why: taskd/comm/rail.py chooses rails, carries endpoints from member to member and decides when an epoch is over.
// Everything that it needs of the transport is here, in Python's types.
//
// Does not: decide any of that, or offer operations (the backend that join() returns does).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c10d/rail_backend.hpp"

namespace taskd::comm {

class RailEngine {
  public:
    using Milliseconds = std::chrono::milliseconds;
    using BackendPointer = c10::intrusive_ptr<RailBackend>;

    explicit RailEngine(rail::Settings settings);

    const std::string& endpoint() const { return engine_->endpoint(); }

    // Blocks at most `within`, and serves Python's signals meanwhile. Throws rail::Trouble.
    BackendPointer join(int64_t epoch, std::string identity, std::vector<std::string> endpoints, std::vector<int> ranks,
                        int me, Milliseconds within, Milliseconds timeout);

    // Ends the groups of this epoch and of all earlier ones. Afterwards they touch no caller's tensor.
    void abort(int64_t epoch, const std::string& reason);

    void set_rail(const std::string& name, bool in_use) { engine_->set_rail(name, in_use); }

    // Nothing is awaited from this process any more (engine.hpp).
    void hear_of_end(int64_t epoch, int rank, const std::string& how) { engine_->hear_of_end(epoch, rank, how); }

    int counters_fd() const { return engine_->counters_fd(); }

    // Leaves all peers in good order (engine.hpp). Does nothing in a forked child of the process that made the engine.
    void close();

  private:
    const std::shared_ptr<rail::Engine> engine_;
    std::mutex mutex_;
    std::vector<std::pair<int64_t, c10::weak_intrusive_ptr<RailBackend>>> groups_;
};

void bind_rail(pybind11::module_& m);

}  // namespace taskd::comm
