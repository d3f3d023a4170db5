// The beat page: one 4 KiB page of shared memory. A worker shows its state to its node's agent there, and the agent
// gives its orders there.
//
// Why: a store to memory costs tens of nanoseconds. It needs no system call, no lock that a dying process could keep,
// and no GIL on either side. What was written outlives the process that wrote it. The page is 64 lines of 64 bytes:
// identity, life, order, the rank's own slot, and 60 slots for process groups.
//
// How it stays whole: every field is a lock-free atomic. A slot is a sequence lock: its word is odd while a thread
// writes. A writer takes the odd value by compare-exchange, because the main thread and the autograd thread both write.
// Data is stored with release and loaded with acquire. That orders it against the word without fences (fences are
// invisible to thread sanitizers). A writer killed in the middle leaves the word odd for ever, so readers give up after
// a bounded number of tries.
//
// Does not: map memory (mapping.hpp), run threads (beat.hpp), or trust what it reads: any value may come out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/system.hpp"

namespace taskd::native {

constexpr uint64_t kPageMagic = 0x45474150444b5354;  // the bytes "TSKDPAGE"
constexpr uint32_t kPageVersion = 1;
constexpr size_t kPageBytes = 4096;
constexpr size_t kLineBytes = 64;
constexpr size_t kGroupSlots = 60;
// About ten microseconds: a reader that meets an interrupted writer should rather come again later.
constexpr int kReaderTries = 256;
// Longer than a scheduler lets an interrupted writer wait, unless the writer is gone for good. It is a time and not a
// number of turns, because on a busy machine a turn with a sched_yield() can take milliseconds.
constexpr int kWriterTurnsBetweenYields = 64;
constexpr int64_t kWriterPatienceNs = 20 * kNanosecondsPerMillisecond;

// The stages of a page's life, which only go forward. The word is also a futex, woken at every change.
constexpr uint32_t kLifeNew = 0;      // no beat yet
constexpr uint32_t kLifeBeating = 1;  // the owner word was taken before this was stored
constexpr uint32_t kLifeClosed = 2;   // an orderly end was announced

struct alignas(kLineBytes) IdentityLine {
    std::atomic<uint64_t> magic;
    std::atomic<uint32_t> version;
    std::atomic<int32_t> pid;
    std::atomic<int32_t> rank;
    std::atomic<uint32_t> reserved;
    std::atomic<uint64_t> incarnation;
    std::atomic<uint64_t> start_time;  // clock ticks after boot: tells a process from a later one with the same pid
};

struct alignas(kLineBytes) LifeLine {
    std::atomic<uint32_t> owner;  // a robust futex (robust.hpp): thread id of the beat thread, or FUTEX_OWNER_DIED
    std::atomic<uint32_t> life;
};

struct alignas(kLineBytes) OrderLine {
    std::atomic<uint32_t> bell;  // futex: the sequence of the last whole order
    std::atomic<uint32_t> lock;
    std::atomic<uint32_t> sequence;
    std::atomic<uint32_t> kind;
    std::atomic<uint32_t> epoch;
    std::atomic<uint32_t> reserved;
    std::atomic<int64_t> at_ns;
};

struct alignas(kLineBytes) RankSlot {
    std::atomic<uint32_t> lock;
    std::atomic<uint32_t> epoch;
    std::atomic<int64_t> beat_ns;  // only the beat thread writes these three, without the lock
    std::atomic<int64_t> beat_period_ns;
    std::atomic<uint64_t> beat_count;
    std::atomic<int64_t> progress_ns;
    std::atomic<int64_t> step;
    std::atomic<uint64_t> sequence;
    std::atomic<uint16_t> phase;
    std::atomic<uint16_t> flags;
    std::atomic<uint32_t> group;
};

struct alignas(kLineBytes) GroupSlot {
    std::atomic<uint32_t> lock;
    std::atomic<uint32_t> group;
    std::atomic<uint64_t> sequence;  // the collective entered last
    std::atomic<int64_t> entered_ns;
    std::atomic<uint64_t> left_sequence;  // the collective left last; of messages, how many have left
    std::atomic<int64_t> left_ns;
    std::atomic<uint64_t> bytes;
    std::atomic<uint32_t> epoch;
    std::atomic<uint16_t> kind;
    std::atomic<uint16_t> used;
    std::atomic<uint64_t> reserved;
};

struct PageLayout {
    IdentityLine identity;
    LifeLine life;
    OrderLine order;
    RankSlot rank;
    GroupSlot groups[kGroupSlots];
};

static_assert(sizeof(IdentityLine) == kLineBytes && sizeof(LifeLine) == kLineBytes && sizeof(OrderLine) == kLineBytes);
static_assert(sizeof(RankSlot) == kLineBytes && sizeof(GroupSlot) == kLineBytes);
static_assert(sizeof(PageLayout) == kPageBytes && alignof(PageLayout) == kLineBytes);
static_assert(offsetof(PageLayout, life) == 64 && offsetof(PageLayout, order) == 128);
static_assert(offsetof(PageLayout, rank) == 192 && offsetof(PageLayout, groups) == 256);
static_assert(offsetof(RankSlot, beat_ns) == 8 && offsetof(RankSlot, sequence) == 48 &&
              offsetof(RankSlot, group) == 60);
static_assert(offsetof(GroupSlot, sequence) == 8 && offsetof(GroupSlot, epoch) == 48 &&
              offsetof(GroupSlot, used) == 54);

// What a reader gets: copies, no atomics.
struct Beat {
    int64_t beat_ns = 0;
    int64_t beat_period_ns = 0;
    uint64_t beat_count = 0;
    int64_t progress_ns = 0;
    uint32_t epoch = 0;
    int64_t step = 0;
    uint16_t phase = 0;
    uint16_t flags = 0;
    uint32_t group = 0;
    uint64_t sequence = 0;
};

struct GroupBeat {
    uint32_t group = 0;
    uint32_t epoch = 0;
    uint16_t kind = 0;
    uint64_t bytes = 0;
    uint64_t sequence = 0;
    int64_t entered_ns = 0;
    uint64_t left_sequence = 0;
    int64_t left_ns = 0;
};

struct Order {
    uint32_t sequence = 0;
    uint32_t kind = 0;
    uint32_t epoch = 0;
    int64_t at_ns = 0;
};

template <class Value, class Given>
inline void put(std::atomic<Value>& field, Given value) noexcept {
    field.store(static_cast<Value>(value), std::memory_order_release);
}

template <class Value>
inline Value get(const std::atomic<Value>& field) noexcept {
    return field.load(std::memory_order_acquire);
}

// Runs `write` with the lock held odd. If another writer keeps the lock all the time (a stopped debugger, a signal
// handler that interrupted a writer), writes nothing and returns false. A lost beat is better than a stuck training
// step.
template <class Write>
inline bool write_slot(std::atomic<uint32_t>& lock, Write write) noexcept {
    int64_t deadline_ns = 0;
    for (;;) {
        for (int turn = 0; turn < kWriterTurnsBetweenYields; ++turn) {
            uint32_t seen = lock.load(std::memory_order_relaxed);
            if ((seen & 1) == 0 &&
                lock.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
                write();
                lock.store(seen + 2, std::memory_order_release);
                return true;
            }
            pause_processor();
        }
        const int64_t at_ns = now_ns();
        if (deadline_ns == 0)
            deadline_ns = at_ns + kWriterPatienceNs;
        if (at_ns >= deadline_ns)
            return false;
        sched_yield();
    }
}

// Runs `copy` until it ran undisturbed. Returns false if that never happened; then its result must not be used.
template <class Copy>
inline bool read_slot(const std::atomic<uint32_t>& lock, Copy copy) noexcept {
    for (int turn = 0; turn < kReaderTries; ++turn) {
        const uint32_t before = lock.load(std::memory_order_acquire);
        if ((before & 1) == 0) {
            copy();
            if (lock.load(std::memory_order_relaxed) == before)
                return true;
        }
        pause_processor();
    }
    return false;
}

inline bool store_progress(RankSlot& slot, uint32_t epoch, int64_t step, uint16_t phase, uint32_t group,
                           uint64_t sequence) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.epoch, epoch);
        put(slot.step, step);
        put(slot.phase, phase);
        put(slot.group, group);
        put(slot.sequence, sequence);
        put(slot.progress_ns, now_ns());
    });
}

inline bool store_phase(RankSlot& slot, uint16_t phase) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.phase, phase);
        put(slot.progress_ns, now_ns());
    });
}

inline bool store_step(RankSlot& slot, int64_t step, uint16_t phase) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.step, step);
        put(slot.phase, phase);
        put(slot.progress_ns, now_ns());
    });
}

inline bool store_sequence(RankSlot& slot, uint32_t group, uint64_t sequence) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.group, group);
        put(slot.sequence, sequence);
        put(slot.progress_ns, now_ns());
    });
}

inline bool store_epoch(RankSlot& slot, uint32_t epoch) noexcept {
    return write_slot(slot.lock, [&] { put(slot.epoch, epoch); });
}

// Flags describe the rank's mode and are no progress, so the progress time stays.
inline bool store_flags(RankSlot& slot, uint16_t flags) noexcept {
    return write_slot(slot.lock, [&] { put(slot.flags, flags); });
}

inline void stamp_beat(RankSlot& slot, uint64_t count) noexcept {
    put(slot.beat_count, count);
    put(slot.beat_ns, now_ns());
}

// Returns false if the slot could not be read whole. The three beat fields are right even then.
inline bool read_beat(const RankSlot& slot, Beat& beat) noexcept {
    beat.beat_ns = get(slot.beat_ns);
    beat.beat_period_ns = get(slot.beat_period_ns);
    beat.beat_count = get(slot.beat_count);
    Beat whole = beat;
    const bool is_whole = read_slot(slot.lock, [&] {
        whole.progress_ns = get(slot.progress_ns);
        whole.epoch = get(slot.epoch);
        whole.step = get(slot.step);
        whole.phase = get(slot.phase);
        whole.flags = get(slot.flags);
        whole.group = get(slot.group);
        whole.sequence = get(slot.sequence);
    });
    if (is_whole)
        beat = whole;
    return is_whole;
}

inline bool enter_group(GroupSlot& slot, uint32_t group, uint32_t epoch, uint64_t sequence, uint16_t kind,
                        uint64_t bytes) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.group, group);
        put(slot.epoch, epoch);
        put(slot.sequence, sequence);
        put(slot.kind, kind);
        put(slot.bytes, bytes);
        put(slot.entered_ns, now_ns());
        put(slot.used, 1);
    });
}

inline bool leave_group(GroupSlot& slot, uint64_t sequence) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.left_sequence, sequence);
        put(slot.left_ns, now_ns());
    });
}

// Gives the slot back: readers see no group in it.
inline bool clear_group(GroupSlot& slot) noexcept {
    return write_slot(slot.lock, [&] {
        put(slot.used, 0);
        put(slot.group, 0);
        put(slot.epoch, 0);
        put(slot.kind, 0);
        put(slot.bytes, 0);
        put(slot.sequence, 0);
        put(slot.entered_ns, 0);
        put(slot.left_sequence, 0);
        put(slot.left_ns, 0);
    });
}

// Returns false if the slot is unused or could not be read whole.
inline bool read_group(const GroupSlot& slot, GroupBeat& beat) noexcept {
    if (get(slot.used) == 0)
        return false;
    uint16_t used = 0;
    const bool is_whole = read_slot(slot.lock, [&] {
        used = get(slot.used);
        beat.group = get(slot.group);
        beat.epoch = get(slot.epoch);
        beat.kind = get(slot.kind);
        beat.bytes = get(slot.bytes);
        beat.sequence = get(slot.sequence);
        beat.entered_ns = get(slot.entered_ns);
        beat.left_sequence = get(slot.left_sequence);
        beat.left_ns = get(slot.left_ns);
    });
    return is_whole && used != 0;
}

// Gives an order and rings the bell. Returns the new order's sequence. A node has one agent, so a lock that stays odd
// belongs to an agent that died in the middle of an order. Its successor takes the lock over.
inline uint32_t give_order(OrderLine& line, uint32_t kind, uint32_t epoch) noexcept {
    uint32_t sequence = 0;
    const auto write = [&] {
        sequence = get(line.sequence) + 1;
        put(line.sequence, sequence);
        put(line.kind, kind);
        put(line.epoch, epoch);
        put(line.at_ns, now_ns());
    };
    if (!write_slot(line.lock, write)) {
        const uint32_t odd = line.lock.load(std::memory_order_relaxed) | 1;
        line.lock.store(odd + 2, std::memory_order_relaxed);
        write();
        line.lock.store(odd + 3, std::memory_order_release);
    }
    put(line.bell, sequence);
    futex_wake_all(line.bell);
    return sequence;
}

inline bool read_order(const OrderLine& line, Order& order) noexcept {
    return read_slot(line.lock, [&] {
        order.sequence = get(line.sequence);
        order.kind = get(line.kind);
        order.epoch = get(line.epoch);
        order.at_ns = get(line.at_ns);
    });
}

enum class WaitEnd { kOrder, kTimeout, kInterrupted };

// Waits for an order whose sequence differs from `after`. kInterrupted: a signal handler ran in this thread; call
// again after serving it. The bell rings after the order is whole, so an agent that dies in the middle wakes nobody.
inline WaitEnd wait_order(const OrderLine& line, uint32_t after, int64_t deadline_ns, Order& order) noexcept {
    for (;;) {
        // Read the bell before the order: then an order that comes in between makes the futex refuse to sleep.
        const uint32_t rung = get(line.bell);
        if (read_order(line, order) && order.sequence != after)
            return WaitEnd::kOrder;
        const int64_t left_ns = deadline_ns - now_ns();
        if (left_ns <= 0)
            return WaitEnd::kTimeout;
        if (futex_wait(line.bell, rung, left_ns) == EINTR)
            return WaitEnd::kInterrupted;
    }
}

// The state of the worker, as far as its page can tell.
enum class Life { kNew, kBeating, kLeft, kDead };

// Evidence, not a verdict: kDead also follows an exec() or the end of the beat thread alone.
inline Life life_of(const LifeLine& line) noexcept {
    const uint32_t life = get(line.life);
    const uint32_t owner = get(line.owner);
    if ((owner & FUTEX_OWNER_DIED) != 0)
        return get(line.life) == kLifeClosed ? Life::kLeft : Life::kDead;
    if (life == kLifeNew)
        return Life::kNew;
    if (owner != 0)
        return Life::kBeating;
    // The word had an owner and has none now. An orderly end stores kLifeClosed before it lets go of the word, so
    // `life` tells whether it was one.
    return get(line.life) == kLifeClosed ? Life::kLeft : Life::kDead;
}

}  // namespace taskd::native
