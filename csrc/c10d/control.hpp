// The process-wide control: the mode of the guards, the epoch, and the failures.
//
// Why: a fault concerns all groups of a process at once. A listener thread, a signal handler's thread or the training
// thread decides what to do. Each of them must be able to change the mode without the GIL and without knowing the
// guards. So there is one lock, one mode and one list of listeners (the lanes). Every listener is told of every change.
//
// Modes. NORMAL: operations run. PARKED: an epoch is being repaired, and operations wait. DRAINING: the step is given
// up, and operations end without communicating. SANDBOX: a newcomer runs its set-up against a record.
//
// Does not: know torch, Python or any operation (lane.hpp does), nor decide anything.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace taskd::comm {

enum class Mode : int { kNormal = 0, kParked = 1, kDraining = 2, kSandbox = 3 };

const char* name_of(Mode mode) noexcept;

// One failure in an inner group, announced out of band. A full list takes no more failures until it is read.
struct Failure {
    std::string group;
    std::string kind;
    uint64_t sequence = 0;
    std::string error;
    int64_t epoch = 0;
    int64_t at_ns = 0;
};

class Control {
  public:
    using Lock = std::unique_lock<std::mutex>;
    using Bell = std::condition_variable;

    // Two counters. An operation keeps those of its making. Comparing them later shows what has happened since.
    struct Turn {
        uint64_t drains = 0;   // how often a step was given up
        uint64_t resumes = 0;  // how often operations were allowed to run again
    };

    // An object that is told of every change, and is asked what is due. Both methods are called with the lock held.
    class Listener {
      public:
        virtual ~Listener() = default;
        virtual void changed(const Lock& lock) noexcept = 0;
        // Does what is due by now. Returns the latest time at which to ask again.
        virtual std::chrono::steady_clock::time_point due(std::chrono::steady_clock::time_point now,
                                                          const Lock& lock) noexcept = 0;
    };

    static Control& instance();

    Control() = default;
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    Lock lock() { return Lock(mutex_); }

    // Readers. The lock argument shows that the caller holds the lock.
    Mode mode(const Lock&) const { return mode_; }

    int64_t epoch(const Lock&) const { return epoch_; }

    Turn turn(const Lock&) const { return turn_; }

    bool attached(const Lock&) const { return attached_; }

    bool rehearsing(const Lock&) const { return rehearsing_; }

    bool aborted(const Lock&) const { return aborted_; }

    // How many operations went to an inner group, including groups that no longer exist.
    uint64_t begun(const Lock&) const { return begun_; }

    void count(const Lock&) { ++begun_; }

    const std::string& abort_reason(const Lock&) const { return abort_reason_; }

    // Changes of mode, from any thread. Each one tells every listener, and throws std::invalid_argument if the epoch
    // goes backwards.
    void resume(int64_t epoch) { change(Mode::kNormal, epoch); }

    void park(int64_t epoch) { change(Mode::kParked, epoch); }

    void drain(int64_t epoch) { change(Mode::kDraining, epoch); }

    void enter_sandbox();
    // Until resume(), every waiting and every new operation fails with this reason.
    void abort(const std::string& reason);
    void set_attached(bool attached);
    void set_rehearsing(bool rehearsing);
    // Raises the epoch without a change of mode, when a guard is reconfigured for it.
    void raise_epoch(int64_t epoch, const Lock& lock);

    // A listener must be taken off the list before it is destroyed.
    void add_listener(Listener* listener);
    void remove_listener(Listener* listener);
    // Asks every listener. Returns the earliest time that one of them returned.
    std::chrono::steady_clock::time_point ask_all(std::chrono::steady_clock::time_point now, const Lock& lock);

    // Waits while the mode is PARKED, at most this long. Returns the mode that it found.
    Mode wait_while_parked(std::chrono::milliseconds at_most);

    // Waits for any change, at most this long. The lock is released meanwhile.
    void wait_for_change(Lock& lock, std::chrono::milliseconds at_most) { changed_.wait_for(lock, at_most); }

    // Failures. The lanes announce them. One Python thread polls event_fd(), an eventfd made at its first use, and
    // takes them.
    void announce(Failure failure, const Lock&);
    std::vector<Failure> take_events();
    int event_fd();

  private:
    void change(Mode mode, int64_t epoch);
    void check_epoch(int64_t epoch) const;
    void tell_all(const Lock& lock);

    std::mutex mutex_;
    Mode mode_ = Mode::kNormal;
    int64_t epoch_ = 0;
    Turn turn_;
    uint64_t begun_ = 0;
    bool attached_ = false;
    bool rehearsing_ = false;
    bool aborted_ = false;
    std::string abort_reason_;
    std::list<Listener*> listeners_;
    Bell changed_;
    std::vector<Failure> failures_;
    int event_fd_ = -1;
};

}  // namespace taskd::comm
