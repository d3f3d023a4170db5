#include "rail/engine/engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "rail/engine/core.hpp"
#include "rail/io/socket.hpp"

namespace taskd::rail {
namespace {

// A group and what must outlive it.
struct Membership {
    Membership(std::shared_ptr<EngineCore> owner, int64_t epoch, const std::string& identity,
               const std::vector<int>& ranks, int me)
        : core(std::move(owner)),
          seat(*core, epoch, identity, ranks),
          group(seat, *core, identity, me, static_cast<int>(ranks.size())) {}

    const std::shared_ptr<EngineCore> core;
    Seat seat;
    Group group;
};

}  // namespace

struct Engine::State {
    std::shared_ptr<EngineCore> core;
    std::string endpoint;
    std::vector<std::pair<int64_t, std::weak_ptr<Group>>> groups;  // under the core's lock
};

Engine::Engine(Settings settings, SocketLayer* sockets) : state_(std::make_unique<State>()) {
    try {
        state_->core = std::make_shared<EngineCore>(std::move(settings), sockets ? *sockets : system_sockets());
        state_->core->start();
    } catch (const std::system_error& error) {
        throw Trouble("The rail engine of this process cannot be made: " + words_of(error.code().value()) + ".");
    }
    state_->endpoint = state_->core->endpoint();
}

Engine::~Engine() {
    try {
        state_->core->check_process();
    } catch (const Trouble&) {
        // Its locks may be held by threads that do not exist in this process: the core stays as it is until this
        // process ends.
        new std::shared_ptr<EngineCore>(state_->core);
        return;
    }
    close();
}

void Engine::close() {
    state_->core->check_process();
    state_->core->stop();
}

const std::string& Engine::endpoint() const {
    return state_->endpoint;
}

std::shared_ptr<Group> Engine::join(int64_t epoch, const std::string& identity,
                                    const std::vector<std::string>& endpoints, const std::vector<int>& ranks, int me,
                                    std::chrono::milliseconds within) {
    EngineCore& core = *state_->core;
    core.check_process();
    if (endpoints.size() != ranks.size() || me < 0 || static_cast<size_t>(me) >= ranks.size())
        throw Trouble("A group needs one endpoint and one number for each member, and `me` among them.");
    std::vector<Endpoint> members;
    for (const std::string& endpoint : endpoints) {
        try {
            members.push_back(unpack(endpoint));
        } catch (const std::invalid_argument& error) {
            throw Trouble(error.what());
        }
    }
    for (size_t member = 0; member < members.size(); ++member) {
        const bool is_mine = members[member].process == core.me().process;
        if (is_mine != (member == static_cast<size_t>(me)))
            throw Trouble("Group " + identity + ": endpoint " + std::to_string(member) +
                          (is_mine ? " is this process's own." : " should be this process's own, and is another's."));
    }
    const int64_t within_ns = std::chrono::nanoseconds(within).count();
    // It is made without the lock and, if needed, destroyed without it.
    const auto membership = std::make_shared<Membership>(state_->core, epoch, identity, ranks, me);
    core.call(epoch, [&] {
        membership->seat.sit(core.connect(epoch, members, ranks, static_cast<size_t>(me), within_ns));
        auto& groups = state_->groups;
        groups.erase(
            std::remove_if(groups.begin(), groups.end(), [](const auto& entry) { return entry.second.expired(); }),
            groups.end());
        groups.emplace_back(epoch, std::shared_ptr<Group>(membership, &membership->group));
    });
    return std::shared_ptr<Group>(membership, &membership->group);
}

void Engine::abort(int64_t epoch, const std::string& reason) {
    EngineCore& core = *state_->core;
    core.check_process();
    std::vector<std::shared_ptr<Group>> groups;
    const auto give_up = [&] {
        core.give_up(epoch, reason);
        for (const auto& [its_epoch, group] : state_->groups) {
            if (auto alive = its_epoch <= epoch ? group.lock() : nullptr)
                groups.push_back(std::move(alive));
        }
    };
    core.urge(std::cref(give_up));  // needs no memory
    for (const auto& group : groups)
        group->abort(reason);
    const auto end = [&] { core.end_epoch(epoch, reason); };
    core.call(epoch, std::cref(end));
}

void Engine::set_rail(const std::string& name, bool in_use) {
    state_->core->check_process();
    const auto order = [&] { state_->core->set_rail(name, in_use); };
    state_->core->call(kEveryEpoch, std::cref(order));
}

void Engine::hear_of_end(int64_t epoch, int rank, const std::string& how) {
    state_->core->check_process();
    const auto tell = [&] { state_->core->hear_of_end(epoch, rank, how); };
    state_->core->call(kEveryEpoch, std::cref(tell));
}

int Engine::counters_fd() const {
    return state_->core->counters_fd();
}

}  // namespace taskd::rail
