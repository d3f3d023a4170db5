// Which operation this process is in. Its beat page gets this as operations enter and leave.
//
// Why: in a hang, the rank at fault is the one that has not entered the operation in which all others wait. Only the
// page of a process tells that from outside, without its help and after its death.
//
// A group has a slot for its collectives. From its first message on it has another slot for its point-to-point
// operations. These end in any order, so their slot says how many have left. If fewer have left than were entered, one
// is still waited for.
//
// Does not: make the page (taskd._native does), or write anything but group slots and the rank's sequence.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "c10d/forks.hpp"
#include "c10d/lane.hpp"
#include "native/page.hpp"

namespace taskd::comm {

// Maps the beat page for all guards. May be called again with a new page. The old mapping stays, because a thread may
// be writing to it. A forked child has no page until it calls this. Throws std::system_error.
void attach_page(int fd);

// Returns the number of a group in the page: FNV-1a of its identity.
uint32_t number_of(const std::string& identity);

// One slot, taken with the first operation. A process has kGroupSlots of them. Later groups do not appear in the page.
class GroupProgress : public Observer {
  public:
    // What left_sequence says: the newest operation that left, or how many operations left.
    enum class Leaves { kNewest, kCount };

    explicit GroupProgress(const std::string& name, Leaves leaves = Leaves::kNewest);
    ~GroupProgress() override;
    // The group is gone: gives the slot back.
    void close() noexcept;

    uint32_t number() const { return number_; }

    void entered(uint16_t kind, uint64_t bytes, uint64_t sequence, int64_t epoch) noexcept override;
    void left(uint64_t sequence) noexcept override;

  private:
    static constexpr int kNotYet = -1;
    static constexpr int kNever = -2;  // closed, or no slot was left

    int slot() noexcept;

    const uint32_t number_;
    const Leaves leaves_;
    std::atomic<int> slot_{kNotYet};
    std::atomic<uint64_t> entered_{0};
    std::atomic<uint64_t> left_{0};
    const Birthplace birthplace_;
};

}  // namespace taskd::comm
