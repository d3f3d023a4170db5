#include "native/beat.hpp"

#include <stdexcept>

#include "native/fork_guard.hpp"
#include "native/robust.hpp"

namespace taskd::native {
namespace {

constexpr uint32_t kStarting = 0;
constexpr uint32_t kStarted = 1;
constexpr uint32_t kRefused = 2;

}  // namespace

// Owned by the handle and by the thread, whichever lives longer.
struct BeatThread::Shared {
    Shared(std::shared_ptr<Mapping> mapping, int64_t period_ns) : mapping(std::move(mapping)), period_ns(period_ns) {}

    void run() noexcept;
    void beat_until_stopped(RankSlot& slot) noexcept;

    const std::shared_ptr<Mapping> mapping;
    const int64_t period_ns;
    std::atomic<uint32_t> stage{kStarting};  // futex
    std::atomic<uint32_t> stop{0};           // futex
};

void BeatThread::Shared::run() noexcept {
    LifeLine& life = mapping->page().life;
    RankSlot& slot = mapping->page().rank;
    RobustHold hold(life.owner);
    if (hold.take() != 0) {
        put(stage, kRefused);
        futex_wake_all(stage);
        return;
    }
    put(slot.beat_period_ns, period_ns);
    stamp_beat(slot, 1);
    put(life.life, kLifeBeating);
    futex_wake_all(life.life);
    put(stage, kStarted);
    futex_wake_all(stage);
    beat_until_stopped(slot);
    put(life.life, kLifeClosed);
    futex_wake_all(life.life);
    hold.release();
}

void BeatThread::Shared::beat_until_stopped(RankSlot& slot) noexcept {
    uint64_t count = 1;
    int64_t next_ns = now_ns() + period_ns;
    while (get(stop) == 0) {
        const int64_t left_ns = next_ns - now_ns();
        if (left_ns > 0) {
            futex_wait(stop, 0, left_ns);
            continue;
        }
        stamp_beat(slot, ++count);
        // After a pause of the whole process, the missed beats are not made up for.
        next_ns = left_ns < -period_ns ? now_ns() + period_ns : next_ns + period_ns;
    }
}

BeatThread::BeatThread(std::shared_ptr<Mapping> mapping, int64_t period_ns) : generation_(fork_generation()) {
    if (period_ns <= 0)
        throw std::invalid_argument("A beat's period is positive, not " + std::to_string(period_ns) + " ns.");
    if (!mapping->is_ours())
        throw std::runtime_error("Only the process that created a page can beat in it: create one here.");
    if (get(mapping->page().life.life) != kLifeNew) {
        throw std::runtime_error("This page's beat was started before and a page has one life: create a new page.");
    }
    shared_ = std::make_shared<Shared>(std::move(mapping), period_ns);
    thread_ = start_thread("taskd-beat", [shared = shared_] { shared->run(); });
    while (get(shared_->stage) == kStarting)
        futex_wait(shared_->stage, kStarting, kNanosecondsPerSecond);
    if (get(shared_->stage) == kStarted)
        return;
    pthread_join(thread_, nullptr);
    throw std::runtime_error(
        "The page's owner word cannot be held: this kernel has no robust futexes, or it is taken.");
}

BeatThread::~BeatThread() {
    if (is_running())
        pthread_detach(thread_);
}

void BeatThread::stop() noexcept {
    if (!is_running())
        return;
    put(shared_->stop, 1);
    futex_wake_all(shared_->stop);
    pthread_join(thread_, nullptr);
    is_joined_ = true;
}

bool BeatThread::is_running() const noexcept {
    return !is_joined_ && generation_ == fork_generation();
}

}  // namespace taskd::native
