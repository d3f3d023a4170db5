// The clock of all lanes: at most one thread, which sleeps until the first of their operations is late.
//
// Why: an operation that is under way costs no thread, so something else must notice that its time is up. A lane says
// when it wants to be asked. That time is compared with the time until which the thread sleeps anyway. So a healthy job
// pays one comparison per operation. The thread wakes once per time limit and finds nothing.
//
// Does not: know what a lane does when it is asked, or keep its thread when no lane has said a time.
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

    // Makes sure that all listeners of the control are asked at this time at the latest.
    void expect(Time when, const Control::Lock&) {
        if (when < next_)
            wake_at(when);
    }

  private:
    void wake_at(Time when);
    void run();

    Control& control_;
    Pool& pool_;
    Control::Bell bell_;  // this and the following members are under the control's lock
    Time next_ = Time::max();
    bool running_ = false;
};

}  // namespace taskd::comm
