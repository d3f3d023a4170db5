// The death watch: tells an agent that a worker died, before the kernel has released the worker's memory.
//
// Why: see robust.hpp. For each page one thread waits on the page's owner word. It puts what it sees into a list, and
// an eventfd makes the agent's poll() return. Each page is reported once: "dead" (the owner died) or "left" (it
// announced its end first). A page whose beat has not started is waited for, not reported.
//
// A report is only evidence: exec(), or the end of the beat thread alone, looks like a death too. process.hpp confirms
// it.
//
// Does not: trust the page (its words are only compared), write to it except the waiters' bit, or end anything.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "native/mapping.hpp"

namespace taskd::native {

struct Death {
    int64_t key = 0;
    int64_t at_ns = 0;
    Life life = Life::kDead;
};

// Methods may be called from any thread. In a forked child every method but the destructor throws std::runtime_error.
class DeathWatch {
  public:
    DeathWatch();
    DeathWatch(const DeathWatch&) = delete;
    DeathWatch& operator=(const DeathWatch&) = delete;
    ~DeathWatch();

    // Readable while there is something to take(). -1 once closed.
    int fd() const noexcept;

    // Throws std::invalid_argument if the key is watched already, std::runtime_error if closed.
    void add(std::shared_ptr<Mapping> mapping, int64_t key);

    // Ends the watch and forgets a report not taken yet. Throws std::invalid_argument for an unknown key.
    void remove(int64_t key);

    std::vector<Death> take();

    // Ends all watches. A second time is fine.
    void close();

  private:
    struct Shared;
    struct Watch;

    void check_usable() const;
    static void end(Watch& watch) noexcept;

    std::shared_ptr<Shared> shared_;
    mutable std::mutex watches_mutex_;
    std::map<int64_t, std::unique_ptr<Watch>> watches_;
    uint64_t generation_;
};

}  // namespace taskd::native
