// The end of the process: a bar that threads of the pool pass before they do what needs an interpreter that lives.
//
// Why: letting go of a tensor that Python knows, or running a callback, takes the GIL, and a thread that asks for the
// GIL of an interpreter which is being taken down is ended on the spot, and the process with it. A script that ends
// right after its last operation would crash now and then. So such stretches are counted; an exit handler waits for
// those that run, and none begins after it.
//
// Does not: know Python or torch.
#pragma once

#include <chrono>

namespace taskd::comm {

// A stretch of work that needs the interpreter. False if the process ends: then leave everything as it is, for ever.
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

// Lets no further stretch begin, and waits for those that run, at most `timeout`. False if one still runs.
bool end_stretches(std::chrono::milliseconds timeout);
bool stretches_ended() noexcept;

}  // namespace taskd::comm
