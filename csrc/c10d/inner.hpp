// The inner groups: one c10d backend each, with the sockets that are surely its own, and a safe way to end it.
//
// Why: destroying a gloo group that lost a peer may take its operation's whole timeout, or never end. So the thread
// that lets go of an inner group never runs its destructor: a thread of the pool does. The groups that still exist are
// counted. An orderly end of the process can wait for them, and a test can see that none is left. A forked child has
// its parent's groups but not their threads, so it never ends them.
//
// Does not: make backends (taskd/comm does, in Python), or run operations on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/exact.hpp"
#include "c10d/forks.hpp"
#include "c10d/lane.hpp"
#include "c10d/sockets.hpp"

namespace taskd::comm {

class InnerBackend : public Inner {
  public:
    // Returns null if `backend` is null. `sockets`: file descriptors of the backend's own connections.
    static std::shared_ptr<InnerBackend> make(c10::intrusive_ptr<::c10d::Backend> backend,
                                              const std::vector<int>& sockets);

    const c10::intrusive_ptr<::c10d::Backend>& backend() const { return backend_; }

    // Returns null unless the backend is exact.
    ExactBackend* exact() const { return exact_; }

    bool keeps_order() const override { return exact_ != nullptr; }

    const Birthplace& birthplace() const { return birthplace_; }

    // Ends the operations still under way: all of them if the backend is exact, otherwise as far as its sockets can.
    void break_off(const std::string& reason) noexcept;

  private:
    InnerBackend(c10::intrusive_ptr<::c10d::Backend> backend, std::vector<SocketMark> marks)
        : backend_(std::move(backend)), exact_(dynamic_cast<ExactBackend*>(backend_.get())), marks_(std::move(marks)) {}

    c10::intrusive_ptr<::c10d::Backend> backend_;
    ExactBackend* const exact_;
    const std::vector<SocketMark> marks_;
    const Birthplace birthplace_;
};

size_t inner_groups_alive();
// Waits until at most `at_most` inner groups exist. Returns false after `timeout`.
bool wait_for_teardown(size_t at_most, std::chrono::milliseconds timeout);

}  // namespace taskd::comm
