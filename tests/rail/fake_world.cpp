#include "fake_transport.hpp"
#include "world.hpp"

namespace taskd::rail::test {
namespace {

class FakeWorld : public World, public Gate {
  public:
    explicit FakeWorld(unsigned seed) : seed_(seed) {}

    std::vector<std::shared_ptr<Group>> group(const std::string& identity, const std::vector<int>& members) override {
        auto net = std::make_unique<FakeNet>();
        net->random.seed(seed_ + static_cast<unsigned>(nets_.size()));
        std::vector<std::shared_ptr<Group>> groups;
        for (int me = 0; me < static_cast<int>(members.size()); ++me) {
            transports_.push_back(std::make_unique<FakeTransport>(*net, me));
            groups.push_back(
                std::make_shared<Group>(*transports_.back(), *this, identity, me, static_cast<int>(members.size())));
        }
        nets_.push_back(std::move(net));
        return groups;
    }

    void lock() override {
        CHECK(!is_locked_);
        is_locked_ = true;
    }

    void unlock() override {
        is_locked_ = false;
        for (const auto& net : nets_)
            while (!net->jobs.empty()) {
                const std::function<void()> job = std::move(net->jobs.front());
                net->jobs.erase(net->jobs.begin());
                job();
            }
    }

    void finish(Outcomes& outcomes) override {
        while (!outcomes.all_ended()) {
            bool moved = false;
            for (const auto& net : nets_)
                moved |= one_step(*net);
            if (!moved)
                pass_time();
        }
        for (const auto& net : nets_) {
            while (one_step(*net)) {
            }
            net->messages.clear();
        }
    }

    void stir() override {
        for (const auto& net : nets_)
            for (unsigned steps = net->random() % 20; steps > 0; --steps)
                one_step(*net);
    }

  private:
    bool one_step(FakeNet& net) {
        lock();
        const bool moved = net.step();
        unlock();
        return moved;
    }

    void pass_time() {
        FakeNet* nearest = nullptr;
        std::pair<int64_t, Party*> wake{INT64_MAX, nullptr};
        for (const auto& net : nets_)
            for (const auto& [party, time_ns] : net->wakes)
                if (time_ns < wake.first)
                    nearest = net.get(), wake = {time_ns, party};
        CHECK(nearest != nullptr);  // otherwise an operation waits and nothing can happen any more
        for (const auto& net : nets_)
            net->now_ns = std::max(net->now_ns, wake.first);
        nearest->wakes.erase(wake.second);
        lock();
        wake.second->woken(nearest->now_ns);
        unlock();
    }

    const unsigned seed_;
    bool is_locked_ = false;
    std::vector<std::unique_ptr<FakeNet>> nets_;
    std::vector<std::unique_ptr<FakeTransport>> transports_;
};

}  // namespace

std::unique_ptr<World> fake_world(unsigned seed) {
    return std::make_unique<FakeWorld>(seed);
}

void Outcomes::note(size_t index, const Failure* failure) {
    // Notifies under the lock, because the waiting thread destroys this object as soon as it can.
    const std::lock_guard<std::mutex> hold(mutex_);
    CHECK(!ended_[index]);
    ended_[index] = true;
    if (failure != nullptr)
        failures_[index] = *failure;
    ++count_ended_;
    changed_.notify_all();
}

void Outcomes::check_success() const {
    const std::lock_guard<std::mutex> hold(mutex_);
    for (size_t index = 0; index < failures_.size(); ++index) {
        if (failures_[index])
            std::fprintf(stderr, "operation %zu failed: %s\n", index, failures_[index]->text.c_str());
        CHECK(ended_[index] && !failures_[index]);
    }
}

std::vector<int> first(int size) {
    std::vector<int> members;
    for (int member = 0; member < size; ++member)
        members.push_back(member);
    return members;
}

}  // namespace taskd::rail::test
