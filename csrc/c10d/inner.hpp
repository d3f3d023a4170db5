// The inner groups: one c10d backend each, with the sockets that are surely its own, and its end.
//
// Why: a gloo group that lost a peer may take its operation's whole timeout to be destroyed, or for ever. So nobody who
// lets go of one runs its destructor: a thread of the pool does. What is under way is counted, so that an orderly end
// of the process can wait for it and a test can see that nothing is left.
//
// Does not: make backends (taskd/comm does, in Python), or run operations on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/exact.hpp"
#include "c10d/lane.hpp"
#include "c10d/sockets.hpp"

namespace taskd::comm {

class InnerBackend : public Inner {
  public:
    // Empty if `backend` is. `sockets`: file descriptors of connections that are the backend's own.
    static std::shared_ptr<InnerBackend> make(c10::intrusive_ptr<::c10d::Backend> backend,
                                              const std::vector<int>& sockets);

    const c10::intrusive_ptr<::c10d::Backend>& backend() const { return backend_; }

    // Null unless it is an exact one.
    ExactBackend* exact() const { return exact_; }

    bool keeps_order() const override { return exact_ != nullptr; }

    // Ends what is still under way in it, as far as its sockets can; all of it, if it is exact.
    void break_off(const std::string& reason) noexcept;

  private:
    InnerBackend(c10::intrusive_ptr<::c10d::Backend> backend, std::vector<SocketMark> marks)
        : backend_(std::move(backend)), exact_(dynamic_cast<ExactBackend*>(backend_.get())), marks_(std::move(marks)) {}

    c10::intrusive_ptr<::c10d::Backend> backend_;
    ExactBackend* const exact_;
    const std::vector<SocketMark> marks_;
};

size_t inner_groups_alive();
// Waits until no more than this many exist. False after `timeout`.
bool wait_for_teardown(size_t at_most, std::chrono::milliseconds timeout);
// A forked child has the guards of its parent but not their threads: it must leave them alone.
void leave_inherited_groups_alone();

}  // namespace taskd::comm
