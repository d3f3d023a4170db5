// What makes an inner group exact: it can be ended at any moment, and nobody touches the caller's tensors afterwards.
//
// Why: an inner operation that may write to its tensors long after everybody stopped caring needs private copies, which
// cost a pass over the memory each way. One that ends when it is told to can work on the caller's own tensors. And its
// completion comes without a future, because futures run whatever was hung on them, on the thread that completes them.
//
// Does not: end or complete anything (the backends that derive from these do).
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace taskd::comm {

// Beside ::c10d::Backend, a base of a backend whose operations are ExactWork and keep the order of their calls by
// themselves, so that several may be under way. It must copy the list of tensors that it is given.
class ExactBackend {
  public:
    virtual ~ExactBackend() = default;

    // Ends everything, now and later, with this reason, within milliseconds. From any thread; never waits for a peer.
    virtual void end(const std::string& reason) = 0;
};

// Its abort() ends this one operation in the same way.
class ExactWork : public ::c10d::Work {
  public:
    using Ended = std::function<void(std::exception_ptr error)>;

    using ::c10d::Work::Work;

    // Calls back exactly once, at once if it has ended already. On any thread, the transport's as well, so what is
    // called neither blocks nor asks for Python's interpreter. Null: it succeeded. No lock of the backend is held.
    virtual void when_done(Ended ended) = 0;
};

}  // namespace taskd::comm
