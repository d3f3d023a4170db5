// Threads on demand. Every job gets a thread at once, and never waits in a queue.
//
// Why: jobs here block for as long as a peer likes (a wait that has no asynchronous form, a destructor that is stuck),
// so two jobs must never share a thread. Threads are detached, are used again while idle, and end when they were idle
// for a while. So an idle guard costs no thread, and a thousand reconfigurations leave none behind.
//
// Does not: limit the number of threads (the operations in flight do), nor join any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace taskd::comm {

class Pool {
  public:
    static Pool& instance();

    // Runs `job` on a thread of its own with all signals blocked. A job must not throw. Throws std::system_error if the
    // system cannot start another thread.
    void run(std::function<void()> job);

    // How many threads exist, idle ones included.
    size_t threads() const;

  private:
    void start(std::function<void()> job);
    void serve(std::function<void()> job);

    mutable std::mutex mutex_;
    std::condition_variable bell_;
    std::deque<std::function<void()>> jobs_;  // an idle thread is already on its way to each of them
    size_t idle_ = 0;
    size_t threads_ = 0;
};

}  // namespace taskd::comm
