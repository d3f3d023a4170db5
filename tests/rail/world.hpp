// Ranks that run operations within one process, over a fake transport or over engines that really connect.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rail/collectives/group.hpp"

namespace taskd::rail::test {

// The results of operations that were started together.
class Outcomes {
  public:
    // Adds one operation, and returns the callback for its end.
    Done add() {
        const std::lock_guard<std::mutex> hold(mutex_);
        const size_t index = failures_.size();
        failures_.emplace_back();
        ended_.push_back(false);
        return [this, index](const Failure* failure) { note(index, failure); };
    }

    bool all_ended() const { return count_ended_ == count(); }

    size_t count_ended() const { return count_ended_; }

    // Waits until all have ended. For operations that other threads end.
    void wait() {
        std::unique_lock<std::mutex> hold(mutex_);
        changed_.wait(hold, [this] { return count_ended_ == failures_.size(); });
    }

    size_t count() const {
        const std::lock_guard<std::mutex> hold(mutex_);
        return failures_.size();
    }

    std::optional<Failure> failure(size_t index) const {
        const std::lock_guard<std::mutex> hold(mutex_);
        return failures_[index];
    }

    bool has_ended(size_t index) const {
        const std::lock_guard<std::mutex> hold(mutex_);
        return ended_[index];
    }

    void check_success() const;

  private:
    void note(size_t index, const Failure* failure);

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::optional<Failure>> failures_;
    std::vector<bool> ended_;
    std::atomic<size_t> count_ended_{0};
};

class World {
  public:
    virtual ~World() = default;
    // Makes a group of the ranks `members`, with one Group for each rank.
    virtual std::vector<std::shared_ptr<Group>> group(const std::string& identity, const std::vector<int>& members) = 0;
    // Runs until all operations have ended.
    virtual void finish(Outcomes& outcomes) = 0;
    // Does a few of the things that can happen.
    virtual void stir() = 0;
};

// Everything happens in an order drawn from the seed. Time passes only when nothing else happens.
std::unique_ptr<World> fake_world(unsigned seed);

std::vector<int> first(int size);

}  // namespace taskd::rail::test
