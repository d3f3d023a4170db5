// Which collective this process is in, stored in its beat page as operations enter and leave.
//
// Why: in a hang the one at fault is who has not entered the operation that all others wait in. Only the page of a
// process tells that from outside, without its help and after its death.
//
// Does not: make the page (taskd._native does), or write anything but group slots and the rank's sequence.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lane.hpp"
#include "page.hpp"

namespace taskd::comm {

// Maps the beat page for all guards. May be called again with a new page; the old mapping stays, somebody may be
// writing to it. Throws std::system_error.
void attach_page(int fd);

// The name of a group in the page: FNV-1a of its identity.
uint32_t number_of(const std::string& identity);

// One group's slot. A process has kGroupSlots; groups beyond that are not seen in the page.
class GroupProgress : public Observer {
  public:
    explicit GroupProgress(const std::string& identity);
    ~GroupProgress() override;
    // The group is gone: gives the slot back.
    void close() noexcept;

    void entered(const Task& task, uint64_t sequence, int64_t epoch) noexcept override;
    void left(uint64_t sequence) noexcept override;

  private:
    const uint32_t number_;
    std::atomic<int> slot_{-1};
    std::atomic<uint64_t> left_{0};  // several may be in flight: the newest that was left
};

}  // namespace taskd::comm
