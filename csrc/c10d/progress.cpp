// See progress.hpp.
#include "progress.hpp"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace taskd::comm {

namespace {

std::atomic<native::PageLayout*> page{nullptr};

struct Slots {
    std::mutex mutex;
    std::array<bool, native::kGroupSlots> taken{};
};

Slots& slots() {
    static Slots* const instance = new Slots();
    return *instance;
}

int take_slot() {
    const std::lock_guard<std::mutex> held(slots().mutex);
    for (size_t i = 0; i < slots().taken.size(); ++i) {
        if (slots().taken[i])
            continue;
        slots().taken[i] = true;
        return static_cast<int>(i);
    }
    return -1;
}

}  // namespace

void attach_page(int fd) {
    void* const address = mmap(nullptr, native::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(), "the beat page cannot be mapped");
    page = static_cast<native::PageLayout*>(address);
}

uint32_t number_of(const std::string& identity) {
    uint32_t hash = 2166136261u;
    for (const char letter : identity)
        hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
    return hash;
}

GroupProgress::GroupProgress(const std::string& identity) : number_(number_of(identity)), slot_(take_slot()) {}

GroupProgress::~GroupProgress() {
    close();
}

void GroupProgress::close() noexcept {
    const int slot = slot_.exchange(-1);
    if (slot < 0)
        return;
    if (native::PageLayout* const mapped = page)
        native::clear_group(mapped->groups[slot]);
    const std::lock_guard<std::mutex> held(slots().mutex);
    slots().taken[static_cast<size_t>(slot)] = false;
}

void GroupProgress::entered(const Task& task, uint64_t sequence, int64_t epoch) noexcept {
    native::PageLayout* const mapped = page;
    if (mapped == nullptr)
        return;
    native::store_sequence(mapped->rank, number_, sequence);
    if (sequence <= left_)
        left_ = 0;  // numbered from 1 again
    const int slot = slot_;
    if (slot < 0)
        return;
    native::enter_group(mapped->groups[slot], number_, static_cast<uint32_t>(epoch), sequence, task.kind_number(),
                        task.bytes());
}

void GroupProgress::left(uint64_t sequence) noexcept {
    native::PageLayout* const mapped = page;
    const int slot = slot_;
    if (sequence <= left_)
        return;
    left_ = sequence;
    if (mapped != nullptr && slot >= 0)
        native::leave_group(mapped->groups[slot], sequence);
}

}  // namespace taskd::comm
