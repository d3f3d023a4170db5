// A storm over lanes without torch, for the sanitizers. Threads submit operations. An inner group answers, fails or
// stays silent. A controller drains, parks, swaps and aborts at random moments.
//
// It ends with code 0 and one line of counts if every operation was settled exactly once, with an outcome that fits
// what was done to it, and none hung. Arguments: SEED ROUNDS.
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <queue>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "c10d/control.hpp"
#include "guard_check.hpp"
#include "c10d/lane.hpp"
#include "../patience.hpp"

using namespace taskd::comm;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

namespace {

constexpr int kLanes = 5;  // two of width 1, two unlimited, and one whose inner groups keep the order themselves
constexpr int kSubmitters = 3;
const auto kHangs = taskd::test::patience();

struct Random {
    explicit Random(unsigned seed) : engine(seed) {}

    int below(int limit) { return static_cast<int>(engine() % static_cast<unsigned>(limit)); }

    std::mt19937 engine;
};

// Counts an operation as under way in an inner group until it is answered, refused or abandoned: the first of these.
class Airborne {
  public:
    explicit Airborne(std::shared_ptr<std::atomic<int>> count)
        : count_(std::move(count)), before_(count_->fetch_add(1)) {}

    void land() {
        if (!landed_.exchange(true))
            --*count_;
    }

    bool alone() const { return before_ == 0; }

  private:
    std::shared_ptr<std::atomic<int>> count_;
    const int before_;
    std::atomic<bool> landed_{false};
};

// Answers flights after random times, from its own threads. One flight in eight gets no answer. One answer in eight is
// a failure.
class World {
  public:
    explicit World(unsigned seed) : random_(seed) {
        for (int i = 0; i < 2; ++i)
            threads_.emplace_back([this] { serve(); });
    }

    ~World() {
        {
            const std::lock_guard<std::mutex> held(mutex_);
            stop_ = true;
        }
        bell_.notify_all();
        for (std::thread& thread : threads_)
            thread.join();
    }

    void ask(std::shared_ptr<Flight> flight, std::shared_ptr<Airborne> airborne) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (random_.below(8) == 0)
            return;
        asked_.push_back({Clock::now() + microseconds(random_.below(300)), random_.below(8) == 0, std::move(flight),
                          std::move(airborne)});
        bell_.notify_all();
    }

  private:
    struct Question {
        Clock::time_point answer_at;
        bool fails = false;
        std::shared_ptr<Flight> flight;
        std::shared_ptr<Airborne> airborne;
    };

    void serve() {
        std::unique_lock<std::mutex> held(mutex_);
        while (!stop_) {
            if (asked_.empty()) {
                bell_.wait(held);
                continue;
            }
            const Question question = std::move(asked_.back());
            asked_.pop_back();
            held.unlock();
            std::this_thread::sleep_until(question.answer_at);
            question.airborne->land();
            question.flight->finish(question.fails ? std::make_exception_ptr(std::runtime_error("connection reset"))
                                                   : nullptr);
            held.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable bell_;
    std::vector<Question> asked_;
    Random random_;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

struct PlainInner : Inner {
    static std::atomic<int> alive;

    explicit PlainInner(bool ordered) : ordered(ordered) { ++alive; }

    ~PlainInner() override { --alive; }

    bool keeps_order() const override { return ordered; }

    const bool ordered;

    const std::shared_ptr<std::atomic<int>> in_flight = std::make_shared<std::atomic<int>>(0);
};

std::atomic<int> PlainInner::alive{0};

struct Counts {
    std::atomic<int> done{0}, drained{0}, failed{0};
};

struct PlainTask : Task {
    PlainTask(World& world, Counts& counts, bool lonely) : world(world), counts(counts), lonely(lonely) {}

    void launch(Inner& inner, const std::shared_ptr<Flight>& flight) override {
        CHECK(settled == 0 && !airborne && value == 0);  // a task is launched only once
        airborne = std::make_shared<Airborne>(static_cast<PlainInner&>(inner).in_flight);
        CHECK(airborne->alone() || !lonely);
        value = 1;
        if (refuses) {
            airborne->land();
            throw std::invalid_argument("refused");
        }
        world.ask(flight, airborne);
    }

    void commit() override {
        CHECK(value == 1 && settled == 0);
        value = 2;
    }

    void drain() noexcept override {
        CHECK(value != 2);
        value = 3;
    }

    std::shared_ptr<void> abandon() noexcept override {
        CHECK(airborne);
        airborne->land();
        airborne.reset();
        return std::make_shared<int>(7);
    }

    void settle(Ending ending, std::exception_ptr error) noexcept override {
        CHECK(settled.fetch_add(1) == 0);
        if (ending == Ending::kDone)
            CHECK(value == 2 && !error);
        if (ending == Ending::kDrained)
            CHECK(value == 3);
        if (ending == Ending::kFailed)
            CHECK(error);
        ++(ending == Ending::kDone ? counts.done : ending == Ending::kDrained ? counts.drained : counts.failed);
        const std::lock_guard<std::mutex> held(mutex);
        ended = true;
        bell.notify_all();
    }

    std::exception_ptr error(const std::string& text) const override {
        return std::make_exception_ptr(std::runtime_error(text));
    }

    bool quick() const override { return !slow; }

    const std::string& kind() const override { return name; }

    uint16_t kind_number() const override { return 1; }

    uint64_t bytes() const override { return 0; }

    std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds(20000); }

    void wait() {
        std::unique_lock<std::mutex> held(mutex);
        CHECK(bell.wait_for(held, kHangs, [this] { return ended; }));
    }

    World& world;
    Counts& counts;
    const bool lonely;
    bool refuses = false;
    bool slow = false;
    const std::string name = "allreduce";
    std::shared_ptr<Airborne> airborne;
    int value = 0;
    std::atomic<int> settled{0};
    std::mutex mutex;
    std::condition_variable bell;
    bool ended = false;
};

struct Group {
    Group(size_t width, bool ordered = false) : width(width), ordered(ordered) {
        seat->group = "0@0-1";
        seat->inner = std::make_shared<PlainInner>(ordered);
        seat->number = 1;
        lane = std::make_shared<Lane>(Control::instance(), Pool::instance(), seat, width, nullptr);
    }

    void swap(int64_t epoch) {
        std::shared_ptr<Inner> next = std::make_shared<PlainInner>(ordered);
        Control& control = Control::instance();
        const Control::Lock lock = control.lock();
        control.raise_epoch(epoch, lock);
        std::swap(seat->inner, next);
        ++seat->number;
        lane->restart_sequence(lock);
        lane->changed(lock);
    }

    const size_t width;
    const bool ordered;
    std::shared_ptr<Seat> seat = std::make_shared<Seat>();
    std::shared_ptr<Lane> lane;
};

// Does what a training thread does: submits a few operations, then waits for all of them.
void submit_some(std::array<Group, kLanes>& groups, World& world, Counts& counts, Random& random) {
    Control& control = Control::instance();
    std::vector<std::shared_ptr<PlainTask>> tasks;
    for (int i = random.below(6); i >= 0; --i) {
        Group& group = groups[static_cast<size_t>(random.below(kLanes))];
        auto task = std::make_shared<PlainTask>(world, counts, group.width == 1 && !group.ordered);
        task->refuses = random.below(50) == 0;
        task->slow = random.below(4) == 0;
        Control::Lock lock = control.lock();
        if (control.mode(lock) == Mode::kDraining)
            continue;
        group.lane->submit(task, lock);
        tasks.push_back(std::move(task));
    }
    for (const auto& task : tasks)
        task->wait();
}

void disturb(std::array<Group, kLanes>& groups, Random& random, int64_t& epoch) {
    Control& control = Control::instance();
    const auto swap_all = [&] {
        for (Group& group : groups) {
            if (random.below(8) != 0)
                group.swap(epoch);
        }
    };
    switch (random.below(6)) {
        case 0:  // a fault: drain, swap and resume as fast as possible
            control.drain(++epoch);
            swap_all();
            control.resume(epoch);
            break;
        case 1:  // the same with pauses
            control.drain(++epoch);
            std::this_thread::sleep_for(microseconds(random.below(500)));
            control.park(epoch);
            swap_all();
            std::this_thread::sleep_for(microseconds(random.below(500)));
            control.resume(epoch);
            break;
        case 2:  // an operator's pause; operations in flight fail if the group is replaced
            control.park(++epoch);
            std::this_thread::sleep_for(microseconds(random.below(500)));
            if (random.below(2) == 0)
                swap_all();
            control.resume(epoch);
            break;
        case 3:
            control.abort("the job ends");
            std::this_thread::sleep_for(microseconds(random.below(200)));
            control.resume(epoch);
            break;
        case 4:
            control.set_attached(random.below(2) == 0);
            break;
        default:
            control.take_events();
            std::this_thread::sleep_for(microseconds(random.below(1000)));
    }
}

void storm(unsigned seed, int rounds) {
    Control& control = Control::instance();
    control.event_fd();
    Counts counts;
    std::atomic<bool> over{false};
    {
        std::array<Group, kLanes> groups{Group(1), Group(1), Group(1000), Group(1000), Group(1, true)};
        World world(seed);
        std::vector<std::thread> submitters;
        for (unsigned i = 0; i < kSubmitters; ++i) {
            submitters.emplace_back([&, i] {
                Random random(seed * 31 + i);
                while (!over)
                    submit_some(groups, world, counts, random);
            });
        }
        Random random(seed);
        int64_t epoch = 0;
        for (int i = 0; i < rounds; ++i)
            disturb(groups, random, epoch);
        over = true;
        // One operation in eight gets no answer: only a drain ends it.
        std::atomic<bool> ended{false};
        std::thread cleaner([&] {
            while (!ended) {
                control.drain(++epoch);
                for (Group& group : groups)
                    group.swap(epoch);
                control.resume(epoch);
                std::this_thread::sleep_for(microseconds(2000));
            }
        });
        for (std::thread& thread : submitters)
            thread.join();
        ended = true;
        cleaner.join();
    }
    // A flight that no caller waits for holds no inner group. So all inner groups are gone once the lanes are gone.
    const auto deadline = Clock::now() + kHangs;
    while (PlainInner::alive > 0 && Clock::now() < deadline)
        std::this_thread::sleep_for(microseconds(1000));
    CHECK(PlainInner::alive == 0);
    CHECK(counts.done > 0 && counts.drained > 0 && counts.failed > 0);
    std::printf("done %d drained %d failed %d\n", counts.done.load(), counts.drained.load(), counts.failed.load());
}

// An operation that takes longer than the job's rhythm allows is announced, and goes on.
void lateness_is_announced() {
    Control& control = Control::instance();
    control.set_attached(true);
    World world(1);
    Counts counts;
    Group group(1);

    struct Silent : PlainTask {
        using PlainTask::PlainTask;

        void launch(Inner&, const std::shared_ptr<Flight>& flight) override {
            airborne = std::make_shared<Airborne>(std::make_shared<std::atomic<int>>(0));
            value = 1;
            if (answers) {
                airborne->land();
                flight->finish(nullptr);
            }
        }

        bool answers = true;
    };

    const auto submit = [&](bool answers) {
        auto task = std::make_shared<Silent>(world, counts, false);
        task->answers = answers;
        Control::Lock lock = control.lock();
        group.lane->submit(task, lock);
        return task;
    };
    for (uint32_t i = 0; i <= Rhythm::kWarmUp; ++i)
        submit(true)->wait();
    const auto late = submit(false);
    const auto begun = Clock::now();
    pollfd event{control.event_fd(), POLLIN, 0};
    CHECK(poll(&event, 1, 20000) == 1);
    CHECK(Clock::now() - begun >= Rhythm::kLeast && late->settled == 0);
    const std::vector<Failure> failures = control.take_events();
    CHECK(failures.size() == 1 && failures[0].sequence == Rhythm::kWarmUp + 2);
    CHECK(failures[0].error.find("no answer within") == 0);
    control.drain(0);
    late->wait();
    CHECK(counts.drained == 1);
    control.resume(0);
    control.set_attached(false);
}

}  // namespace

int main(int count, char** arguments) {
    CHECK(count == 3);
    record_and_replay();
    record_without_an_end();
    rhythm_is_learned();
    lateness_is_announced();
    storm(static_cast<unsigned>(std::atoi(arguments[1])), std::atoi(arguments[2]));
    return 0;
}
