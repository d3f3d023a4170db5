#include "virtual.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kEpoch = 1;
constexpr uint64_t kGroup = 1;
constexpr int64_t kDialNs = 1 * kMillisecondNs;

Endpoint endpoint(int side, size_t rails) {
    Endpoint made;
    made.process = std::string(kProcessIdBytes, static_cast<char>('a' + side));
    made.node = "node" + std::to_string(side);
    for (size_t index = 0; index < rails; ++index)
        made.rails.push_back({std::string(1, static_cast<char>('a' + index)), "127.0.0.2", 1234, 8});
    return made;
}

}  // namespace

Side::Side(World& world, int number, size_t rails)
    : world_(world),
      number_(number),
      session_(
          std::make_unique<Session>(*this, world.sockets, counters_, Retry(),
                                    Pair{kEpoch, endpoint(number, rails), endpoint(1 - number, rails), 1 - number})) {}

int64_t Side::now_ns() const {
    return world_.now_ns;
}

void Side::dial(Session&, size_t slot) {
    world_.dial(slot);
}

void Side::read() {
    const double more = bytes_per_second * kTickNs / 1e9;
    credit_ = std::min(credit_ + more, std::max(65536.0, more));
    char scratch[16 << 10];
    std::vector<Link*> links;
    for (const auto& [fd, link] : watched_)
        links.push_back(link);
    ++turns_;
    // Reads a little from each link in turn, so that the links share the processor.
    for (bool any = true; any && credit_ > 0;) {
        any = false;
        for (size_t index = 0; index < links.size() && credit_ > 0; ++index) {
            Link& link = *links[(index + turns_) % links.size()];
            const uint64_t before = link.bytes_read();
            link.read(*session_, scratch, sizeof scratch, turn_bytes);
            any = any || (link.bytes_read() != before && !link.is_broken());
            credit_ -= static_cast<double>(link.bytes_read() - before);
            is_dirty_ = is_dirty_ || link.is_broken();
        }
    }
}

void Side::operate() {
    if (exchange_ && !exchange_->is_over())
        return;
    if (exchange_) {
        operations.emplace_back(began_ns_, world_.now_ns);
        session_->traffic().forget(*exchange_, kGroup);
        past_.push_back(std::move(exchange_));
    }
    if (messages.empty())
        return;
    exchange_ = std::make_unique<Exchange>(++sequence_, messages.size());
    began_ns_ = world_.now_ns;
    out_.resize(*std::max_element(messages.begin(), messages.end()));
    in_.resize(messages.size());
    for (uint32_t part = 0; part < messages.size(); ++part) {
        in_[part].resize(out_.size());
        session_->traffic().receive(*exchange_, 0, {kGroup, sequence_, part}, in_[part].data(), messages[part]);
        session_->traffic().send(*exchange_, 0, {kGroup, sequence_, part}, out_.data(), messages[part], false);
    }
}

void Side::settle() {
    for (;;) {
        operate();
        if (!events_.empty()) {
            const Event event = events_.front();
            events_.pop_front();
            if (event.what == Event::What::kSent)
                event.party->sent(event.member, event.part);
            else if (event.what == Event::What::kArrived)
                event.party->arrived(event.member, event.part);
        } else if (is_dirty_) {
            is_dirty_ = false;
            const bool more = session_->pump();
            if (session_->reap())
                continue;
            if (more)
                wake_by(world_.now_ns + 1);
        } else {
            break;
        }
    }
}

void Side::live() {
    if (world_.now_ns < stopped_until_ns)
        return;
    for (const auto& [fd, link] : watched_) {
        if (link->blocked() && world_.sockets.ends.at(fd).out.size() < VirtualSockets::kBuffer / 2) {
            link->unblock();
            is_dirty_ = true;
        }
    }
    read();
    if (armed_ns_ <= world_.now_ns) {
        armed_ns_ = INT64_MAX;
        session_->on_time(world_.now_ns);
        is_dirty_ = true;
        settle();
        wake_by(session_->next_ns(world_.now_ns));
    }
    settle();
}

World::World(size_t count) : rails(count), carried_(count) {
    for (int side = 0; side < 2; ++side)
        sides[side] = std::make_unique<Side>(*this, side, count);
}

void World::connect(size_t rail) {
    last_fd_ += 2;
    for (int side = 0; side < 2; ++side) {
        VirtualEnd& end = sockets.ends[last_fd_ + side];
        end.rail = rail;
        end.side = side;
        end.connection = static_cast<uint64_t>(last_fd_);
    }
    for (int side = 0; side < 2; ++side)
        sides[side]->session().attach(rail, last_fd_ + side);
}

void World::dial(size_t rail) {
    dials_.emplace_back(now_ns + kDialNs, rail);
}

void World::reset(size_t rail) {
    for (auto& side : sides) {
        if (Link* const link = side->session().paths()[rail].link())
            link->cut(ECONNRESET);
        side->dirty(side->session());
    }
}

double World::share(size_t rail) {
    double all = 0;
    double mine = 0;
    for (size_t index = 0; index < rails.size(); ++index) {
        const uint64_t more = rails[index].ways[0].carried - carried_[index];
        carried_[index] = rails[index].ways[0].carried;
        all += static_cast<double>(more);
        mine = index == rail ? static_cast<double>(more) : mine;
    }
    return all == 0 ? 0 : mine / all;
}

void World::carry(int fd, VirtualEnd* to, Wire& wire, const Wire& back) {
    VirtualEnd& from = sockets.ends.at(fd);
    if (back.rate > 0)
        from.unconfirmed = 0;
    const size_t some = std::min({static_cast<size_t>(wire.credit), from.out.size(), sockets.room_for(fd)});
    if (some > 0) {
        from.flying.emplace_back(now_ns + wire.latency_ns, std::string(from.out.front(), some));
        from.flying_bytes += some;
        from.out.pop(some);
        wire.credit -= static_cast<double>(some);
        wire.carried += some;
    }
    while (!from.flying.empty() && from.flying.front().first <= now_ns && wire.rate > 0) {
        const std::string& bytes = from.flying.front().second;
        if (to != nullptr)
            to->in.push(bytes.data(), bytes.size());
        from.flying_bytes -= bytes.size();
        from.unconfirmed += bytes.size();
        from.flying.pop_front();
    }
}

void World::run(int64_t for_ns) {
    for (const int64_t until = now_ns + for_ns; now_ns < until; now_ns += kTickNs) {
        for (VirtualRail& rail : rails) {
            for (Wire& wire : rail.ways)
                wire.credit =
                    std::min(wire.credit + wire.rate * kTickNs / 1e9, std::max(wire.rate * kTickNs / 1e9, 1500.0));
        }
        for (auto& [fd, end] : sockets.ends) {
            const auto other = sockets.ends.find(fd ^ 1);
            carry(fd, other == sockets.ends.end() ? nullptr : &other->second, rails[end.rail].ways[end.side],
                  rails[end.rail].ways[1 - end.side]);
        }
        std::vector<std::pair<int64_t, size_t>> due;
        for (const auto& each : dials_) {
            if (each.first <= now_ns)
                due.push_back(each);
        }
        dials_.erase(
            std::remove_if(dials_.begin(), dials_.end(), [&](const auto& each) { return each.first <= now_ns; }),
            dials_.end());
        for (const auto& [time, rail] : due) {
            if (rails[rail].is_there)
                connect(rail);
            else
                sides[0]->session().dial_failed(rail, ETIMEDOUT, "no answer");
        }
        for (auto& side : sides)
            side->live();
    }
}

}  // namespace taskd::rail::test
