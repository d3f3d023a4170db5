#include "native/death_watch.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "native/fork_guard.hpp"

namespace taskd::native {

// The reports, shared by the watching threads and the owner. Lives as long as the last of them.
struct DeathWatch::Shared {
    Shared() : event_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (event_fd < 0)
            throw_errno(errno, "cannot create the death watch's eventfd");
        close_on_fork(event_fd);
    }

    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    ~Shared() {
        keep_on_fork(event_fd);
        ::close(event_fd);
    }

    void report(const Death& death) {
        const std::lock_guard<std::mutex> guard(mutex);
        deaths.push_back(death);
        // Cannot fail: the counter would have to reach 2^64.
        eventfd_write(event_fd, 1);
    }

    const int event_fd;
    std::mutex mutex;
    std::vector<Death> deaths;
};

struct DeathWatch::Watch {
    // Returns how the worker ended, or nothing once `stop` is set.
    std::optional<Life> wait() noexcept {
        // A wake-up can fall between looking at `stop` and going to sleep. So end() wakes repeatedly. This is only the
        // longest sleep if no wake-up comes.
        constexpr int64_t kSliceNs = kNanosecondsPerSecond;
        LifeLine& line = mapping->page().life;
        while (get(stop) == 0) {
            const Life life = life_of(line);
            if (life == Life::kNew) {
                futex_wait(line.life, kLifeNew, kSliceNs);
            } else if (life == Life::kBeating) {
                uint32_t owner = get(line.owner);
                if (owner == 0 || (owner & FUTEX_OWNER_DIED) != 0)
                    continue;
                // On the owner's death, the kernel wakes a waiter only if this bit says that one waits.
                if ((owner & FUTEX_WAITERS) == 0 && !line.owner.compare_exchange_strong(owner, owner | FUTEX_WAITERS)) {
                    continue;
                }
                futex_wait(line.owner, owner | FUTEX_WAITERS, kSliceNs);
            } else {
                // The kernel wakes one waiter only. Wake the others: the agent before or after this one may be
                // watching, too.
                futex_wake_all(line.owner);
                return life;
            }
        }
        return std::nullopt;
    }

    void run() {
        if (const std::optional<Life> life = wait())
            shared->report({key, now_ns(), *life});
        put(done, 1);
        futex_wake_all(done);
    }

    std::shared_ptr<Shared> shared;
    std::shared_ptr<Mapping> mapping;
    int64_t key;
    pthread_t thread{};
    std::atomic<uint32_t> stop{0};
    std::atomic<uint32_t> done{0};  // futex
};

DeathWatch::DeathWatch() : shared_(std::make_shared<Shared>()), generation_(fork_generation()) {}

DeathWatch::~DeathWatch() {
    if (generation_ == fork_generation()) {
        close();
        return;
    }
    // In a forked child the threads do not exist and their locks may be held for ever. The memory is left to the exit.
    for (auto& [key, watch] : watches_)
        static_cast<void>(watch.release());
}

void DeathWatch::check_usable() const {
    if (generation_ != fork_generation()) {
        throw std::runtime_error("A death watch stays with the process that made it: make a new one after a fork.");
    }
}

int DeathWatch::fd() const noexcept {
    if (generation_ != fork_generation())
        return -1;
    const std::lock_guard<std::mutex> guard(watches_mutex_);
    return shared_ ? shared_->event_fd : -1;
}

void DeathWatch::add(std::shared_ptr<Mapping> mapping, int64_t key) {
    check_usable();
    const std::lock_guard<std::mutex> guard(watches_mutex_);
    if (!shared_)
        throw std::runtime_error("This death watch is closed: make a new one.");
    if (watches_.count(key) != 0) {
        throw std::invalid_argument("Key " + std::to_string(key) + " is watched already: remove it first.");
    }
    auto watch = std::make_unique<Watch>();
    watch->shared = shared_;
    watch->mapping = std::move(mapping);
    watch->key = key;
    watch->thread = start_thread("taskd-watch", [watch = watch.get()] { watch->run(); });
    watches_.emplace(key, std::move(watch));
}

void DeathWatch::end(Watch& watch) noexcept {
    put(watch.stop, 1);
    LifeLine& line = watch.mapping->page().life;
    while (get(watch.done) == 0) {
        futex_wake_all(line.owner);
        futex_wake_all(line.life);
        futex_wait(watch.done, 0, kNanosecondsPerMillisecond);
    }
    pthread_join(watch.thread, nullptr);
}

void DeathWatch::remove(int64_t key) {
    check_usable();
    std::unique_ptr<Watch> watch;
    {
        const std::lock_guard<std::mutex> guard(watches_mutex_);
        const auto found = watches_.find(key);
        if (found == watches_.end())
            throw std::invalid_argument("Key " + std::to_string(key) + " is not watched: add it first.");
        watch = std::move(found->second);
        watches_.erase(found);
    }
    end(*watch);
    const std::lock_guard<std::mutex> guard(watch->shared->mutex);
    auto& deaths = watch->shared->deaths;
    deaths.erase(std::remove_if(deaths.begin(), deaths.end(), [key](const Death& death) { return death.key == key; }),
                 deaths.end());
}

std::vector<Death> DeathWatch::take() {
    check_usable();
    std::shared_ptr<Shared> shared;
    {
        const std::lock_guard<std::mutex> guard(watches_mutex_);
        shared = shared_;
    }
    std::vector<Death> deaths;
    if (!shared)
        return deaths;
    const std::lock_guard<std::mutex> guard(shared->mutex);
    eventfd_t count = 0;
    eventfd_read(shared->event_fd, &count);
    deaths.swap(shared->deaths);
    return deaths;
}

void DeathWatch::close() {
    check_usable();
    std::map<int64_t, std::unique_ptr<Watch>> watches;
    std::shared_ptr<Shared> shared;
    {
        const std::lock_guard<std::mutex> guard(watches_mutex_);
        watches.swap(watches_);
        shared.swap(shared_);
    }
    for (auto& [key, watch] : watches)
        put(watch->stop, 1);
    for (auto& [key, watch] : watches)
        end(*watch);
}

}  // namespace taskd::native
