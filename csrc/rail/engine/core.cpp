// The descriptors, the times and the thread; the lock is in lock.cpp, epochs and sessions in epochs.cpp.
#include "rail/engine/core.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "native/system.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kTurnBytes = 1 << 20;
constexpr int kEvents = 64;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kAcceptAgainNs = 100 * kMillisecondNs;

int checked(int result, const char* what) {
    if (result < 0)
        throw std::system_error(errno, std::generic_category(), what);
    return result;
}

}  // namespace

EngineCore::EngineCore(Settings settings, SocketLayer& sockets)
    : settings_(std::move(settings)),
      sockets_(sockets),
      owner_(getpid()),
      ordered_(settings_.rails.size(), true),
      door_(*this, sockets, settings_.key, (me_.process = random_bytes(kProcessIdBytes))),
      scratch_(new char[kScratchBytes]) {
    try {
        open();
    } catch (...) {
        close_all();
        throw;
    }
}

void EngineCore::open() {
    epoll_ = checked(epoll_create1(EPOLL_CLOEXEC), "cannot create an epoll descriptor");
    wake_ = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "cannot create an event descriptor");
    timer_ = checked(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "cannot create a timer descriptor");
    for (const int fd : {epoll_, wake_, timer_, counters_.fd()}) {
        if (fd >= 0 && settings_.close_on_fork)
            settings_.close_on_fork(fd);
    }
    add({Source::Kind::kWake, wake_}, EPOLLIN);
    add({Source::Kind::kTimer, timer_}, EPOLLIN);
    std::vector<Watched> watched;
    for (const RailSpec& rail : settings_.rails)
        watched.push_back({rail.interface, rail.interface.empty() ? "" : rail.address});
    interfaces_ = std::make_unique<InterfaceWatch>(std::move(watched));
    if (interfaces_->fd() >= 0)
        add({Source::Kind::kInterfaces, interfaces_->fd()}, EPOLLIN);
    listen();
}

EngineCore::~EngineCore() {
    // In a forked child the descriptor numbers may belong to something else by now.
    if (getpid() != owner_)
        return;
    lock();
    sessions_.clear();
    settle();
    mutex_.unlock();
    close_all();
}

void EngineCore::close_all() {
    std::vector<int> listeners;
    for (const auto& [number, source] : sources_) {
        if (source.kind == Source::Kind::kListener)
            listeners.push_back(source.fd);
    }
    for (const int fd : listeners) {
        remove(fd);
        sockets_.close(fd);
    }
    for (const int fd : {epoll_, wake_, timer_, counters_.fd(), interfaces_ ? interfaces_->fd() : -1}) {
        if (fd >= 0 && settings_.keep_on_fork)
            settings_.keep_on_fork(fd);
    }
    for (const int fd : {epoll_, wake_, timer_}) {
        if (fd >= 0)
            ::close(fd);
    }
}

void EngineCore::check_process() const {
    if (getpid() != owner_)
        throw Trouble("This process was forked from the one that made the rail engine: make an engine of its own.");
}

int64_t EngineCore::now_ns() const {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kSecondNs + time.tv_nsec;
}

void EngineCore::forget(Party& party) {
    const auto is_its = [&](const Event& event) { return event.party == &party; };
    events_.erase(std::remove_if(events_.begin(), events_.end(), is_its), events_.end());
    wake_at(party, 0);
}

void EngineCore::unsay_sent(Party& party, int member, uint32_t part) {
    const auto is_it = [&](const Event& event) {
        return event.what == Event::What::kSent && event.party == &party && event.member == member &&
               event.part == part;
    };
    events_.erase(std::remove_if(events_.begin(), events_.end(), is_it), events_.end());
}

// ---- times

void EngineCore::wake_by(int64_t time_ns) {
    if (time_ns >= armed_ns_)
        return;
    armed_ns_ = time_ns;
    const int64_t at = std::max<int64_t>(time_ns, 1);
    const itimerspec spec{{0, 0}, {at / kSecondNs, at % kSecondNs}};
    timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

void EngineCore::wake_at(Party& party, int64_t time_ns) {
    if (const auto found = wish_of_.find(&party); found != wish_of_.end()) {
        auto place = wishes_.lower_bound(found->second);
        while (place->second != &party)
            ++place;
        wishes_.erase(place);
        wish_of_.erase(found);
    }
    if (time_ns == 0)
        return;
    wishes_.emplace(time_ns, &party);
    wish_of_[&party] = time_ns;
    wake_by(time_ns);
}

void EngineCore::call_those_who_wished(int64_t now) {
    while (!wishes_.empty() && wishes_.begin()->first <= now) {
        Party* const party = wishes_.begin()->second;
        wish_of_.erase(party);
        wishes_.erase(wishes_.begin());
        post({Event::What::kWoken, party});
    }
}

void EngineCore::on_time() {
    timer_fired_ = false;
    const int64_t now = now_ns();
    attempt(kEveryEpoch, [&] { call_those_who_wished(now); });
    if (accept_at_ns_ <= now) {
        accept_at_ns_ = INT64_MAX;
        std::vector<uint64_t> listeners;
        listeners.swap(full_);
        for (const uint64_t number : listeners)
            accept_all(number);
    }
    attempt(kEveryEpoch, [&] { door_.on_time(now); });
    for (const auto& entry : sessions_)
        attempt(entry.first.first, [&] { entry.second->on_time(now); });
    settle();
    // The next time is computed even if something was thrown.
    int64_t next = std::min(door_.next_ns(), accept_at_ns_);
    for (const auto& entry : sessions_)
        attempt(entry.first.first, [&] { next = std::min(next, entry.second->next_ns(now)); });
    if (!wishes_.empty())
        next = std::min(next, wishes_.begin()->first);
    if (next != INT64_MAX)
        wake_by(next);
}

// ---- the thread

void EngineCore::start() {
    thread_ = native::start_thread("taskd-rail", [this] { run(); });
    has_thread_ = true;
}

void EngineCore::wake() {
    const uint64_t one = 1;
    // A full counter means that the thread is awake already.
    (void)!::write(wake_, &one, sizeof one);
}

void EngineCore::run() {
    bool is_busy = false;
    for (;;) {
        epoll_event events[kEvents];
        const int count = epoll_wait(epoll_, events, kEvents, is_busy ? 0 : -1);
        lock();
        in_thread_ = true;
        for (int index = 0; index < count; ++index) {
            attempt(kEveryEpoch, [&] { ready(events[index].data.u64, events[index].events); });
            end_faulty();
        }
        read_links();
        if (timer_fired_)
            on_time();
        std::vector<Session*> more;
        more.swap(unfinished_);
        for (Session* session : more)
            attempt(session->pair().epoch, [&] { dirty(*session); });
        settle();
        is_busy = !readable_.empty() || has_work();
        const bool is_over = stopping_ && !draining_;
        unlock();
        if (is_over)
            return;
    }
}

void EngineCore::ready(uint64_t number, uint32_t events) {
    const auto found = sources_.find(number);
    if (found == sources_.end())
        return;
    const Source source = found->second;
    uint64_t count = 0;
    switch (source.kind) {
        case Source::Kind::kWake:
            (void)!::read(wake_, &count, sizeof count);
            break;
        case Source::Kind::kTimer:
            // The timer may have been armed again meanwhile; then there is nothing to read.
            if (::read(timer_, &count, sizeof count) > 0) {
                armed_ns_ = INT64_MAX;
                timer_fired_ = true;
            }
            break;
        case Source::Kind::kListener:
            accept_all(number);
            break;
        case Source::Kind::kInterfaces:
            for (const InterfaceChange& change : interfaces_->take()) {
                for (const auto& [name, session] : sessions_)
                    session->set_interface(change.index, change.usable, change.reason);
            }
            break;
        case Source::Kind::kGreeting:
            door_.ready(source.greeting);
            break;
        case Source::Kind::kLink: {
            Link& link = *source.session->paths()[source.slot].link();
            if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
                link.hung_up();
            if ((events & ~uint32_t{EPOLLOUT}) != 0 && !link.is_readable) {
                link.is_readable = true;
                readable_.push_back(number);
            }
            if ((events & EPOLLOUT) != 0 && link.blocked()) {
                link.unblock();
                dirty(*source.session);
            }
            break;
        }
    }
}

void EngineCore::accept_all(uint64_t number) {
    const auto found = sources_.find(number);
    if (found == sources_.end())
        return;
    const int listener = found->second.fd;
    int fd = 0;
    const bool has_asked = attempt(kNoEpoch, [&] {
        while ((fd = sockets_.accept(listener)) >= 0 || fd == -EINTR || fd == -ECONNABORTED) {
            if (fd >= 0)
                door_.came(fd);
        }
    });
    if (has_asked && (fd == -EAGAIN || fd == -EWOULDBLOCK))
        return;
    // No descriptor or memory is left. Nothing reports when there is one again, and epoll has reported these
    // connections already. So they are accepted at a later time.
    full_.push_back(number);
    accept_at_ns_ = now_ns() + kAcceptAgainNs;
    wake_by(accept_at_ns_);
}

// Does one bounded read for each link that has data, and lets waiting threads have the lock after each.
void EngineCore::read_links() {
    for (size_t rest = readable_.size(); rest > 0 && !readable_.empty(); --rest) {
        const uint64_t number = readable_.front();
        readable_.pop_front();
        const auto found = sources_.find(number);
        if (found == sources_.end())
            continue;
        Session& session = *found->second.session;
        Link& link = *session.paths()[found->second.slot].link();
        attempt(session.pair().epoch, [&] {
            link.is_readable = false;
            if (link.read(session, scratch_.get(), kScratchBytes, kTurnBytes) == Link::Progress::kMore) {
                link.is_readable = true;
                readable_.push_back(number);
            }
            if (link.is_broken())
                dirty(session);
        });
        breathe();
    }
}

}  // namespace taskd::rail
