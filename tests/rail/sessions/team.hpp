// Several engines in one process, each with its own sockets, and a wait for their operations.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../patience.hpp"
#include "rail/engine/engine.hpp"
#include "faulty.hpp"

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition))                                                                                       \
            taskd::rail::test::give_up(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition); \
    } while (false)

namespace taskd::rail::test {

// The test that is running now.
inline const char* g_test = "";

// Ends the process at once, whatever the other ranks wait for.
[[noreturn]] inline void give_up(const std::string& what) {
    std::fflush(stdout);
    std::fprintf(stderr, "failed in \"%s\": %s\n", g_test, what.c_str());
    std::fflush(stderr);
    std::_Exit(1);
}

// Runs what one rank does. If it throws, the test ends here. Otherwise the other ranks would wait until their timeout.
template <class Action>
void as_rank(int rank, const Action& action) {
    try {
        action();
    } catch (const std::exception& error) {
        give_up("rank " + std::to_string(rank) + ": " + error.what());
    }
}

inline const int64_t kPatienceNs = std::chrono::nanoseconds(taskd::test::patience()).count();

// The end of one operation.
class Ending {
  public:
    Done done() {
        return [this](const Failure* failure) {
            const std::lock_guard<std::mutex> hold(mutex_);
            CHECK(!is_done_);
            is_done_ = true;
            if (failure != nullptr) {
                text_ = failure->text;
                code_ = failure->code;
            }
            changed_.notify_all();
        };
    }

    // Waits for the end. Returns why the operation failed; empty if it did not fail.
    std::string wait() {
        std::unique_lock<std::mutex> hold(mutex_);
        CHECK(changed_.wait_for(hold, 2 * taskd::test::patience(), [this] { return is_done_; }));
        return text_;
    }

    Failure::Code code() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return code_;
    }

    bool is_done() {
        const std::lock_guard<std::mutex> hold(mutex_);
        return is_done_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_done_ = false;
    std::string text_;
    Failure::Code code_ = Failure::Code::kLost;
};

struct Team {
    explicit Team(int size, int rails = 2, uint64_t seed = 0, int faults = 0, Retry retry = {}) {
        for (int rank = 0; rank < size; ++rank) {
            Settings settings;
            for (int rail = 0; rail < rails; ++rail)
                settings.rails.push_back(
                    {std::string(1, static_cast<char>('a' + rail)), "127.0.0." + std::to_string(2 + rail), ""});
            settings.key = std::string(32, 'k');
            settings.title = "rank " + std::to_string(rank);
            settings.node = "node" + std::to_string(rank);
            settings.retry = retry;
            sockets.push_back(std::make_unique<FaultySockets>(seed * 1000 + static_cast<uint64_t>(rank), faults));
            engines.push_back(std::make_unique<Engine>(settings, sockets.back().get()));
            endpoints.push_back(engines.back()->endpoint());
            ranks.push_back(rank);
        }
    }

    std::vector<std::shared_ptr<Group>> join(int64_t epoch, const std::string& identity = "g") {
        std::vector<std::shared_ptr<Group>> groups(engines.size());
        each([&](int rank) {
            groups[static_cast<size_t>(rank)] = engines[static_cast<size_t>(rank)]->join(
                epoch, identity, endpoints, ranks, rank, taskd::test::patience());
        });
        return groups;
    }

    template <class Action>
    void each(Action action) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < static_cast<int>(engines.size()); ++rank)
            threads.emplace_back([&action, rank] { as_rank(rank, [&] { action(rank); }); });
        for (std::thread& thread : threads)
            thread.join();
    }

    std::vector<std::unique_ptr<FaultySockets>> sockets;
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<std::string> endpoints;
    std::vector<int> ranks;
};

}  // namespace taskd::rail::test
