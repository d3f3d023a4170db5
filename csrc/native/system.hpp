// System calls that the C library does not wrap, the clock, and plain threads.
//
// Why: the beat page is shared between processes, so its waits are shared futexes. Its times are CLOCK_MONOTONIC
// nanoseconds, the one clock that all processes of a node agree on. Threads made here never run a Python signal handler
// (all signals are blocked). They have small stacks, because an agent has one for each worker.
//
// Does not: know the page, Python or torch.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace taskd::native {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr int64_t kNanosecondsPerMillisecond = 1'000'000;

static_assert(std::atomic<uint16_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free &&
                  std::atomic<uint64_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "an atomic with a hidden lock means nothing to another process");
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel sees a futex as a bare 32-bit word");

inline int64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * kNanosecondsPerSecond + now.tv_nsec;
}

[[noreturn]] inline void throw_errno(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

// Sleeps while `word` holds `expected`, at most `timeout_ns`. Returns 0 (woken, perhaps for nothing), EAGAIN (the word
// already differs), ETIMEDOUT or EINTR. Shared between processes; the kernel never follows anything but the address.
inline int futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) noexcept {
    timeout_ns = std::max<int64_t>(timeout_ns, 0);
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(timeout_ns / kNanosecondsPerSecond);
    timeout.tv_nsec = static_cast<long>(timeout_ns % kNanosecondsPerSecond);
    const long result = syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
    return result == 0 ? 0 : errno;
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// One turn of a short spin.
inline void pause_processor() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Asks the scheduler for short slices. Then a thread that mostly sleeps runs soon after it wakes, even if every
// processor is busy. It is only a request: kernels before 6.12 do not know it for ordinary threads, and ignore it.
inline void prefer_short_slices() noexcept {
    struct Attributes {
        uint32_t size;
        uint32_t policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime;
        uint64_t deadline;
        uint64_t period;
    } attributes{};

    constexpr uint64_t kShortestSliceNs = 100'000;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0)
        return;
    attributes.runtime = kShortestSliceNs;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Starts a joinable thread with every signal blocked. `name` has at most 15 characters. Throws std::system_error.
inline pthread_t start_thread(const char* name, std::function<void()> body) {
    struct Start {
        const char* name;
        std::function<void()> body;
    };

    constexpr size_t kStackBytes = 256 * 1024;
    auto start = std::make_unique<Start>(Start{name, std::move(body)});
    const auto run = [](void* argument) -> void* {
        std::unique_ptr<Start> start(static_cast<Start*>(argument));
        pthread_setname_np(pthread_self(), start->name);
        prefer_short_slices();
        start->body();
        return nullptr;
    };
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_t thread{};
    int error = pthread_create(&thread, &attributes, run, start.get());
    // Thread-local variables of big libraries live on the stack too. If they leave no room, take the usual stack size.
    if (error == EINVAL)
        error = pthread_create(&thread, nullptr, run, start.get());
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0)
        throw_errno(error, std::string("cannot start the thread ") + name);
    start.release();
    return thread;
}

}  // namespace taskd::native
