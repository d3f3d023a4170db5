// The beat thread: proves that its process lives, whatever the interpreter is doing.
//
// Why: a beat from Python stalls behind a held GIL. This thread needs neither Python nor memory allocation. It stamps
// the page each period. It also holds the page's owner word from start to end, and this word shows its death at once.
//
// It beats until stop(), the one orderly end, or until the process ends. Dropping the object does not stop it. A script
// that loses its handle, or an interpreter that shuts down, has not left the job in order.
//
// Does not: say anything about progress; the training thread does.
#pragma once

#include <cstdint>
#include <memory>

#include "native/mapping.hpp"

namespace taskd::native {

class BeatThread {
  public:
    // Returns once the owner word is held and the first beat is stamped. Throws std::invalid_argument (a period that
    // is not positive) or std::runtime_error (not this process's page, or it has beaten before).
    BeatThread(std::shared_ptr<Mapping> mapping, int64_t period_ns);

    BeatThread(const BeatThread&) = delete;
    BeatThread& operator=(const BeatThread&) = delete;
    ~BeatThread();

    // Announces the orderly end, lets go of the word and joins. Does nothing if already stopped, or in a forked child.
    void stop() noexcept;

    // False in a forked child, where the thread does not exist.
    bool is_running() const noexcept;

  private:
    struct Shared;

    std::shared_ptr<Shared> shared_;
    pthread_t thread_{};
    bool is_joined_ = false;
    uint64_t generation_;
};

}  // namespace taskd::native
