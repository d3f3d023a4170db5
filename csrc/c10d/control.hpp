// The process-wide control: which mode the guards are in, which epoch, and what failed.
//
// Why: a fault concerns every group of a process at once, and whoever decides (a listener thread, a signal handler's
// thread, the training thread itself) must be able to change the mode without the GIL and without knowing the guards.
// So there is one lock, one mode and one list of listeners (the lanes), which are told of every change.
//
// Modes: NORMAL, operations run. PARKED, an epoch is being repaired and operations wait. DRAINING, the step is given up
// and operations end without communicating. SANDBOX, a newcomer runs its set-up against a record.
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

// One thing that went wrong in an inner group, announced out of band. A full list takes no more until it is read.
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

    // What an operation must know to tell what happened since it was made.
    struct Turn {
        uint64_t drains = 0;   // how often a step was given up
        uint64_t resumes = 0;  // how often operations were let go again
    };

    // Whoever must hear of every change, and be asked as time goes by. Both are called with the lock held.
    class Listener {
      public:
        virtual ~Listener() = default;
        virtual void changed(const Lock& lock) noexcept = 0;
        // Does what is due by now; says when to ask again at the latest.
        virtual std::chrono::steady_clock::time_point due(std::chrono::steady_clock::time_point now,
                                                          const Lock& lock) noexcept = 0;
    };

    static Control& instance();

    Control() = default;
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    Lock lock() { return Lock(mutex_); }

    // Readers. They take the lock as a witness that it is held.
    Mode mode(const Lock&) const { return mode_; }

    int64_t epoch(const Lock&) const { return epoch_; }

    Turn turn(const Lock&) const { return turn_; }

    bool attached(const Lock&) const { return attached_; }

    bool rehearsing(const Lock&) const { return rehearsing_; }

    bool aborted(const Lock&) const { return aborted_; }

    // How many operations went to an inner group, whichever groups have come and gone since.
    uint64_t begun(const Lock&) const { return begun_; }

    void count(const Lock&) { ++begun_; }

    const std::string& abort_reason(const Lock&) const { return abort_reason_; }

    // Changes of mode. From any thread; each tells every listener. Throw std::invalid_argument if the epoch goes
    // backwards.
    void resume(int64_t epoch) { change(Mode::kNormal, epoch); }

    void park(int64_t epoch) { change(Mode::kParked, epoch); }

    void drain(int64_t epoch) { change(Mode::kDraining, epoch); }

    void enter_sandbox();
    // Every operation that waits or comes fails with this reason, until resume().
    void abort(const std::string& reason);
    void set_attached(bool attached);
    void set_rehearsing(bool rehearsing);
    // Raises the epoch without a change of mode, when a guard is reconfigured for it.
    void raise_epoch(int64_t epoch, const Lock& lock);

    // A listener must be taken off the list before it is destroyed.
    void add_listener(Listener* listener);
    void remove_listener(Listener* listener);
    // Asks every listener; the earliest time that one of them said.
    std::chrono::steady_clock::time_point ask_all(std::chrono::steady_clock::time_point now, const Lock& lock);

    // Waits, at most this long, while the mode is PARKED. Returns the mode found.
    Mode wait_while_parked(std::chrono::milliseconds at_most);

    // Waits, at most this long, for any change. The lock is released meanwhile.
    void wait_for_change(Lock& lock, std::chrono::milliseconds at_most) { changed_.wait_for(lock, at_most); }

    // Failures: announced by the lanes, taken by one Python thread that polls event_fd() (an eventfd, made at first
    // use).
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
