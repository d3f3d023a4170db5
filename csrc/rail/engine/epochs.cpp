// Descriptors, epochs and sessions of the engine; its lock and thread are in core.cpp.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rail/engine/core.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail {
namespace {

constexpr int64_t kFarewellNs = 2'000 * kMillisecondNs;

// Whether the session is connected now, or was until the other side said farewell. The other side may have made this
// very group and gone on since. So chance does not decide whether a member can make a group that another member has
// made. If that goes wrong later, the operations say so.
bool is_ready(const std::shared_ptr<Session>& session) {
    return !session || session->life().heard_farewell() ||
           (session->paths().connected() > 0 && !session->life().is_over());
}

int prefix_of(const std::vector<Interface>& interfaces, const std::string& address) {
    for (const Interface& interface : interfaces) {
        for (const Address& own : interface.addresses) {
            if (own.text == address.substr(0, address.find('%')))
                return own.prefix;
        }
    }
    return 0;
}

}  // namespace

void EngineCore::listen() {
    if (settings_.rails.empty() || settings_.rails.size() > kMostRails)
        throw Trouble("An engine needs 1 to 16 rails, and " + std::to_string(settings_.rails.size()) + " are named.");
    me_.node = settings_.node;
    me_.title = settings_.title;
    std::vector<Interface> interfaces;
    try {
        interfaces = list_interfaces();
    } catch (const std::system_error&) {
        // Without the interfaces, rails pair by name and order only.
    }
    std::string tried;
    size_t listening = 0;
    for (const RailSpec& rail : settings_.rails) {
        SocketAddress address;
        try {
            address = parse_address(rail.address, 0);
        } catch (const std::invalid_argument& error) {
            throw Trouble("Rail " + rail.name + ": " + error.what());
        }
        int fd = -EADDRINUSE;
        for (int port = settings_.first_port;
             fd == -EADDRINUSE && port <= std::max(settings_.first_port, settings_.last_port); ++port) {
            address.set_port(port);
            fd = sockets_.listen(address);
        }
        // A rail that cannot be listened on now still keeps its place, so that it can dial when it is back.
        me_.rails.push_back({rail.name, rail.address, fd < 0 ? 1 : sockets_.port_of(fd),
                             prefix_of(interfaces, rail.address), rail.expected});
        if (fd < 0) {
            tried += (tried.empty() ? "" : ", ") + rail.name + " (" + rail.address + ": " + words_of(-fd) + ")";
            continue;
        }
        ++listening;
        add({Source::Kind::kListener, fd}, EPOLLIN | EPOLLET);
    }
    if (listening == 0)
        throw Trouble("No rail can be listened on: " + tried + ". " +
                      (settings_.first_port > 0 && tried.find(words_of(EADDRINUSE)) != std::string::npos
                           ? "Give rails a range of more ports than this host has processes (TASKD_RAIL_PORTS)."
                           : "Name addresses that this host has (TASKD_RAILS)."));
    endpoint_ = pack(me_);
}

uint64_t EngineCore::add(const Source& source, uint32_t events) {
    const uint64_t number = ++last_source_;
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    try {
        by_fd_[source.fd] = number;
        sources_[number] = source;
        if (settings_.close_on_fork)
            settings_.close_on_fork(source.fd);
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, source.fd, &event) != 0)
            throw std::system_error(errno, std::generic_category(), "cannot watch a descriptor");
    } catch (...) {
        remove(source.fd);  // the number may be reused soon
        throw;
    }
    return number;
}

void EngineCore::remove(int fd) {
    const auto found = by_fd_.find(fd);
    if (found == by_fd_.end())
        return;
    sources_.erase(found->second);
    by_fd_.erase(found);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    if (settings_.keep_on_fork)
        settings_.keep_on_fork(fd);
}

void EngineCore::watch(Session& session, Link& link) {
    Source source{Source::Kind::kLink, link.fd()};
    source.session = &session;
    source.slot = link.slot();
    const uint64_t number = add(source, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    link.is_readable = true;
    readable_.push_back(number);
    if (!in_thread_)
        wake();
}

void EngineCore::unwatch(Link& link) {
    remove(link.fd());
}

void EngineCore::watch(int fd, uint64_t greeting) {
    Source source{Source::Kind::kGreeting, fd};
    source.greeting = greeting;
    add(source, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

void EngineCore::unwatch(int fd, uint64_t) {
    remove(fd);
}

// ---- dials

Session* EngineCore::session_of(int64_t epoch, const std::string& process) {
    const auto found = sessions_.find({epoch, process});
    return found == sessions_.end() ? nullptr : found->second.get();
}

void EngineCore::dial(Session& session, size_t slot) {
    const Path& pair = session.paths()[slot];
    const EndpointRail& there = session.pair().peer.rails[pair.rails.there];
    const Hello hello{me_.process, session.pair().peer.process, session.pair().epoch,
                      static_cast<uint32_t>(pair.rails.here)};
    SocketAddress remote;
    try {
        remote = parse_address(there.address, there.port);
    } catch (const std::invalid_argument& error) {
        // The address may name an interface that only its own host has; this affects only this one rail.
        session.dial_failed(slot, EINVAL, error.what());
        return;
    }
    door_.dial(hello, parse_address(me_.rails[pair.rails.here].address, 0), remote);
}

const Answer* EngineCore::judge(const Hello& hello) {
    static const Answer kYes = Answer::kWelcome;
    static const Answer kOld = Answer::kStale;
    static const Answer kNo = Answer::kUnknown;
    if (is_over(hello.epoch))
        return &kOld;
    Session* const session = session_of(hello);
    if (session == nullptr)
        return nullptr;
    if (session->life().is_over())
        return &kOld;
    for (const Path& path : session->paths()) {
        if (path.rails.there == hello.rail && !session->pair().dials())
            return &kYes;
    }
    return &kNo;
}

size_t EngineCore::expected() const {
    size_t count = 0;
    for (const auto& [name, session] : sessions_) {
        const Paths& paths = session->paths();
        count += session->pair().dials() ? 0 : paths.size() - paths.connected();
    }
    return count;
}

void EngineCore::welcomed(const Hello& hello, int fd) {
    Session& session = *session_of(hello);
    for (size_t index = 0; index < session.paths().size(); ++index) {
        if (session.paths()[index].rails.there == hello.rail) {
            attempt(session.pair().epoch, [&] { session.attach(index, fd); });
            return;
        }
    }
}

void EngineCore::dialled(const Hello& hello, int fd) {
    Session* const session = session_of(hello.epoch, hello.to);
    if (session == nullptr || session->life().is_over()) {
        sockets_.close(fd);
        return;
    }
    for (size_t index = 0; index < session->paths().size(); ++index) {
        if (session->paths()[index].rails.here == hello.rail)
            attempt(hello.epoch, [&] { session->attach(index, fd); });
    }
}

void EngineCore::dial_failed(const Hello& hello, int error, const std::string& trouble) {
    Session* const session = session_of(hello.epoch, hello.to);
    for (size_t index = 0; session != nullptr && index < session->paths().size(); ++index) {
        if (session->paths()[index].rails.here == hello.rail)
            attempt(hello.epoch, [&] { session->dial_failed(index, error, trouble); });
    }
}

void EngineCore::count(Stranger stranger) {
    CounterHeader& header = counters_.header();
    rail::add(stranger == Stranger::kStale   ? header.stale
              : stranger == Stranger::kNoKey ? header.strangers
                                             : header.garbage,
              1);
}

void EngineCore::changed(Session& session) {
    // While the engine is being closed, its own operations fail because of the closing only.
    if (session.life().is_over() && !draining_)
        failed_.push_back(&session);
    has_changed();
}

// ---- epochs

std::vector<std::shared_ptr<Session>> EngineCore::connect(int64_t epoch, const std::vector<Endpoint>& members,
                                                          const std::vector<int>& ranks, size_t me, int64_t within_ns) {
    check_open(epoch);
    std::vector<std::shared_ptr<Session>> sessions;
    for (size_t member = 0; member < members.size(); ++member) {
        if (member == me) {
            sessions.push_back(nullptr);
            continue;
        }
        std::shared_ptr<Session> session;
        if (const auto found = sessions_.find({epoch, members[member].process}); found != sessions_.end()) {
            session = found->second;
        } else {
            session = std::make_shared<Session>(*this, sockets_, counters_, settings_.retry,
                                                Pair{epoch, me_, members[member], ranks[member]});
            sessions_.emplace(std::make_pair(epoch, members[member].process), session);
            for (size_t rail = 0; rail < settings_.rails.size(); ++rail) {
                if (!ordered_[rail])
                    session->set_order(rail, false);
                if (!interfaces_->usable(rail))
                    session->set_interface(rail, false, interfaces_->reason(rail));
            }
        }
        sessions.push_back(session);
    }
    door_.judge_again();
    end_faulty();
    const int64_t until = now_ns() + within_ns;
    const auto has_failed = [](const std::shared_ptr<Session>& session) {
        return session && session->life().is_over() && !session->life().heard_farewell();
    };
    while (!is_over(epoch) && !std::all_of(sessions.begin(), sessions.end(), is_ready) &&
           std::none_of(sessions.begin(), sessions.end(), has_failed) && now_ns() < until)
        wait_for_change(until);
    check_open(epoch);
    if (!std::all_of(sessions.begin(), sessions.end(), is_ready))
        missing(sessions, ranks, epoch, within_ns);
    return sessions;
}

void EngineCore::missing(const std::vector<std::shared_ptr<Session>>& sessions, const std::vector<int>& ranks,
                         int64_t epoch, int64_t within_ns) {
    const bool is_late = std::all_of(sessions.begin(), sessions.end(),
                                     [](const auto& session) { return !session || !session->life().is_over(); });
    std::string text = "Epoch " + std::to_string(epoch) + " could not be joined" +
                       (is_late ? " within " + std::to_string(within_ns / kMillisecondNs) + " ms" : "") + ". Missing:";
    for (size_t member = 0; member < sessions.size(); ++member) {
        const auto& session = sessions[member];
        if (is_ready(session))
            continue;
        text += " rank " + std::to_string(ranks[member]) + " (" + session->pair().peer.node + "; " +
                (session->life().is_over() ? session->life().failure()
                                           : what_was_tried(session->pair(), session->life(), session->paths())) +
                ")";
    }
    if (!full_.empty())
        text += ". This process can accept no connection: " + words_of(EMFILE);
    if (stray_[0] != '\0')
        text += std::string(". A connection was not accepted: ") + stray_.data();
    throw Trouble(text + ". Are these processes alive, and may they be reached from here?");
}

void EngineCore::end_sessions(int64_t epoch, const std::string& reason) {
    for (auto place = sessions_.begin(); place != sessions_.end() && place->first.first <= epoch;) {
        const std::shared_ptr<Session> session = place->second;
        place = sessions_.erase(place);
        attempt(epoch, [&] { session->end(reason); });
        for (auto* list : {&dirty_, &unfinished_, &failed_})
            list->erase(std::remove(list->begin(), list->end(), session.get()), list->end());
    }
}

void EngineCore::give_up(int64_t epoch, const std::string& reason, Failure::Code code) {
    over_ = std::max(over_, epoch);
    for (Seat* seat : seats_) {
        if (seat->epoch() <= epoch)
            attempt(epoch, [&] { seat->fail(code, reason); });
    }
    has_changed();
}

void EngineCore::end_epoch(int64_t epoch, const std::string& reason) {
    end_sessions(epoch, reason);
    attempt(epoch, [&] { door_.drop(epoch); });
    has_changed();
}

void EngineCore::unseated(Seat& seat) {
    settle();  // the marked work may be the last thing that this group's sessions do
    seats_.erase(std::remove(seats_.begin(), seats_.end(), &seat), seats_.end());
}

void EngineCore::set_rail(const std::string& name, bool in_use) {
    bool is_known = false;
    for (size_t rail = 0; rail < settings_.rails.size(); ++rail) {
        if (settings_.rails[rail].name != name)
            continue;
        is_known = true;
        ordered_[rail] = in_use;
        for (const auto& entry : sessions_)
            attempt(entry.first.first, [&] { entry.second->set_order(rail, in_use); });
    }
    if (!is_known)
        throw Trouble("There is no rail " + name + " here: see the names with `taskd rail list`.");
}

void EngineCore::hear_of_end(int64_t epoch, int rank, const std::string& how) {
    for (const auto& [name, session] : sessions_) {
        if (name.first <= epoch && session->pair().peer_rank == rank)
            attempt(name.first, [&, &ended = *session] { ended.hear_of_end(how); });
    }
}

void EngineCore::stop() {
    lock();
    if (is_closed()) {
        unlock();
        return;
    }
    draining_ = true;
    std::string reason;  // it ends without a reason, too
    attempt(kNoEpoch, [&] { reason = "its engine has been closed"; });
    for (const auto& entry : sessions_)
        attempt(entry.first.first, [&] { entry.second->leave(reason); });
    const int64_t until = now_ns() + kFarewellNs;
    const auto somebody_lingers = [this] {
        return std::any_of(sessions_.begin(), sessions_.end(),
                           [](const auto& each) { return each.second->life().lingers(); });
    };
    while (somebody_lingers() && now_ns() < until)
        wait_for_change(until);
    draining_ = false;
    stopping_ = true;
    std::string own;
    attempt(kNoEpoch, [&] { own = "the engine of this process has been closed"; });
    give_up(INT64_MAX, own);
    end_sessions(INT64_MAX, reason);
    wake();
    unlock();
    if (has_thread_)
        pthread_join(thread_, nullptr);
    has_thread_ = false;
}

}  // namespace taskd::rail
