// Holding a robust futex, so that the kernel itself says when the holder dies.
//
// Why: when a thread ends, for any reason, the kernel walks the list of futexes that the thread registered. It sets
// FUTEX_OWNER_DIED in each and wakes a waiter. It does so before the process's memory is released. That makes a death
// visible in a tenth of a millisecond instead of a tenth of a second.
//
// Why not a pthread mutex: its list pointers lie inside the mutex, that is, in the shared page. A thread that takes the
// mutex follows and writes them, so an agent would follow pointers that another process wrote. Here the list lies in
// the holder's private memory. The page has one word, and waiters only look at that word. They need not take it: the
// died bit stays, so any number of agents, including late ones, read the same thing.
//
// Does not: work for a thread that uses robust pthread mutexes; its list is replaced while the word is held.
#pragma once

#include "native/system.hpp"

namespace taskd::native {

// Lives on the stack of the thread that holds the word.
class RobustHold {
  public:
    explicit RobustHold(std::atomic<uint32_t>& word) noexcept : word_(word) {
        head_.list.next = &head_.list;
        head_.futex_offset = reinterpret_cast<char*>(&word_) - reinterpret_cast<char*>(&entry_);
        head_.list_op_pending = nullptr;
        entry_.next = &head_.list;
    }

    RobustHold(const RobustHold&) = delete;
    RobustHold& operator=(const RobustHold&) = delete;

    // Returns 0 or an errno. EBUSY: the word has, or had, another holder.
    int take() noexcept {
        size_t length = 0;
        if (syscall(SYS_get_robust_list, 0, &before_, &length) != 0)
            return errno;
        if (syscall(SYS_set_robust_list, &head_, sizeof head_) != 0)
            return errno;
        const auto self = static_cast<uint32_t>(syscall(SYS_gettid));
        // The pending entry covers the moment when the word is taken but not yet in the list.
        head_.list_op_pending = &entry_;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        uint32_t expected = 0;
        const bool is_taken = word_.compare_exchange_strong(expected, self, std::memory_order_acq_rel);
        if (is_taken)
            head_.list.next = &entry_;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        head_.list_op_pending = nullptr;
        if (!is_taken)
            restore();
        return is_taken ? 0 : EBUSY;
    }

    // Releases the word in order and wakes all waiters.
    void release() noexcept {
        head_.list_op_pending = &entry_;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        head_.list.next = &head_.list;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        word_.store(0, std::memory_order_release);
        futex_wake_all(word_);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        head_.list_op_pending = nullptr;
        restore();
    }

  private:
    void restore() noexcept { syscall(SYS_set_robust_list, before_, sizeof head_); }

    std::atomic<uint32_t>& word_;
    robust_list_head head_{};
    robust_list entry_{};
    robust_list_head* before_ = nullptr;
};

}  // namespace taskd::native
