// The end of the process: a gate that threads of the pool pass before work that needs a living interpreter.
//
// Why: letting go of a tensor that Python knows, or running a callback, takes the GIL. A thread that asks for the GIL
// while the interpreter is being shut down is ended on the spot, and the process with it. So a script that ends right
// after its last operation would crash now and then. Therefore such work is counted. An exit handler waits for the work
// that runs, and no new work begins after it.
//
// Does not: know Python or torch.
#pragma once

#include <chrono>

namespace taskd::comm {

// A stretch of work that needs the interpreter. If it is false, the process ends: leave everything as it is, for ever.
class Stretch {
  public:
    Stretch();
    ~Stretch();
    Stretch(const Stretch&) = delete;
    Stretch& operator=(const Stretch&) = delete;

    explicit operator bool() const { return begun_; }

  private:
    bool begun_ = false;
};

// Lets no further stretch begin. Waits for the running ones, at most `timeout`. Returns false if one still runs.
bool end_stretches(std::chrono::milliseconds timeout);
bool stretches_ended() noexcept;

}  // namespace taskd::comm
