// See progress.hpp.
#include "c10d/progress.hpp"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace taskd::comm {

namespace {

std::atomic<native::PageLayout*> page{nullptr};
[[maybe_unused]] const bool is_left_in_children = [] {
    in_children([] { page = nullptr; });  // what a child does is no progress of this rank
    return true;
}();

struct Slots {
    std::mutex mutex;
    std::array<bool, native::kGroupSlots> taken{};
};

Slots& slots = one_per_process<Slots>();

int take_slot(int if_none) {
    const std::lock_guard<std::mutex> held(slots.mutex);
    for (size_t i = 0; i < slots.taken.size(); ++i) {
        if (slots.taken[i])
            continue;
        slots.taken[i] = true;
        return static_cast<int>(i);
    }
    return if_none;
}

void give_back(int slot) {
    const std::lock_guard<std::mutex> held(slots.mutex);
    slots.taken[static_cast<size_t>(slot)] = false;
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

GroupProgress::GroupProgress(const std::string& name, Leaves leaves) : number_(number_of(name)), leaves_(leaves) {}

GroupProgress::~GroupProgress() {
    close();
}

void GroupProgress::close() noexcept {
    const int slot = slot_.exchange(kNever);
    if (slot < 0 || birthplace_.is_elsewhere())
        return;
    if (native::PageLayout* const mapped = page)
        native::clear_group(mapped->groups[slot]);
    give_back(slot);
}

int GroupProgress::slot() noexcept {
    int known = slot_;
    if (known != kNotYet)
        return known;
    const int taken = take_slot(kNever);
    if (slot_.compare_exchange_strong(known, taken))
        return taken;
    if (taken >= 0)
        give_back(taken);  // closed meanwhile, or another thread was quicker
    return known;
}

void GroupProgress::entered(uint16_t kind, uint64_t bytes, uint64_t sequence, int64_t epoch) noexcept {
    native::PageLayout* const mapped = page;
    if (mapped == nullptr)
        return;
    native::store_sequence(mapped->rank, number_, sequence);
    const bool again = sequence <= entered_;  // the numbers began at 1 again
    entered_ = sequence;
    if (again)
        left_ = 0;
    const int place = slot();
    if (place < 0)
        return;
    if (again)
        native::leave_group(mapped->groups[place], 0);
    native::enter_group(mapped->groups[place], number_, static_cast<uint32_t>(epoch), sequence, kind, bytes);
}

void GroupProgress::left(uint64_t sequence) noexcept {
    native::PageLayout* const mapped = page;
    if (mapped == nullptr || sequence > entered_)  // from before the numbers began again
        return;
    if (leaves_ == Leaves::kCount) {
        ++left_;
    } else if (sequence > left_) {
        left_ = sequence;
    } else {
        return;
    }
    const int place = slot_;
    if (place >= 0)
        native::leave_group(mapped->groups[place], left_);
}

}  // namespace taskd::comm
