// The clock of all lanes: one thread at most, which sleeps until the first of their operations is late.
//
// Why: an operation that is under way costs no thread, so somebody else must notice that its time is up. A lane says
// when it wants to be asked; that is compared with what the thread sleeps for anyway, so in a healthy job it is one
// comparison for an operation, and the thread wakes once in a limit's time and finds nothing.
//
// Does not: know what a lane does when it is asked, or keep its thread when nobody has said a time.
#pragma once

#include <chrono>

#include "c10d/control.hpp"
#include "c10d/pool.hpp"

namespace taskd::comm {

class Watch {
  public:
    using Time = std::chrono::steady_clock::time_point;

    static Watch& instance();

    Watch(Control& control, Pool& pool) : control_(control), pool_(pool) {}

    // All listeners of the control are asked at this time at the latest.
    void expect(Time when, const Control::Lock&) {
        if (when < next_)
            wake_at(when);
    }

  private:
    void wake_at(Time when);
    void run();

    Control& control_;
    Pool& pool_;
    Control::Bell bell_;  // this and what follows under the control's lock
    Time next_ = Time::max();
    bool running_ = false;
};

}  // namespace taskd::comm
