// An operation that is being handed to a stream-ordered inner group, until that group has taken it.
//
// Why: at its first operation such a group makes its communicator, on the caller's thread. For that it waits for the
// other ranks, first in the store and then on sockets of its own. If one of them is gone, only the thread that knows of
// the repair can end this wait. A guard counts its operations in this state, and the store asks on each slice of a wait
// whether it waits for one of them.
//
// Does not: end the wait on sockets (taskd/comm/nccl.py does).
#pragma once

#include <atomic>
#include <cstdint>

#include "c10d/control.hpp"

namespace taskd::comm {

class HandingOver {
  public:
    // `count`: of the guard's operations in this state. Null: this one does not get that far.
    HandingOver(std::atomic<int>* count, Control& control, const Control::Turn& born);
    HandingOver(const HandingOver&) = delete;
    HandingOver& operator=(const HandingOver&) = delete;
    ~HandingOver();

    // The inner group has taken the operation, or has refused it.
    void end();

    // Whether this thread hands an operation over whose step has been given up since.
    static bool given_up();
    static bool on_this_thread();

  private:
    std::atomic<int>* count_;
    Control& control_;
    const uint64_t drains_;
    HandingOver* const outer_;  // the one during which this one began
};

}  // namespace taskd::comm
