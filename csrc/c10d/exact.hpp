// What makes an inner group exact: it can be ended at any moment, and afterwards nothing touches the caller's tensors.
//
// Why: an inner operation that may write to its tensors long after it was abandoned needs private copies. These cost
// one pass over the memory in each direction. An operation that ends when it is told to can work on the caller's own
// tensors. Its completion is reported without a future, because a future runs its callbacks on the thread that
// completes it.
//
// Does not: end or complete anything (the backends that derive from these classes do).
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace taskd::comm {

// A second base class, beside ::c10d::Backend, of a backend whose operations are ExactWork. The backend keeps the order
// of its calls by itself, so several may be under way. It must copy the list of tensors that it is given.
class ExactBackend {
  public:
    virtual ~ExactBackend() = default;

    // Ends everything, now and later, with this reason, within milliseconds. Any thread may call it. It never waits for
    // a peer.
    virtual void end(const std::string& reason) = 0;
};

// A Work whose abort() ends this one operation in the same way.
class ExactWork : public ::c10d::Work {
  public:
    using Ended = std::function<void(std::exception_ptr error)>;

    using ::c10d::Work::Work;

    // Calls `ended` exactly once; at once if the operation has already ended. The call may come on any thread,
    // including the transport's own, so it must neither block nor ask for Python's interpreter. A null error means
    // success. No lock of the backend is held.
    virtual void when_done(Ended ended) = 0;
};

}  // namespace taskd::comm
