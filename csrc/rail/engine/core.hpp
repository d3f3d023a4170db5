// The core of the engine: its lock, its thread, its descriptors and timers, and everything that depends on them.
//
// How it stays simple: each event (a socket is ready, a time has come, a caller sends) only changes state and marks
// sessions. The work that follows is done in one place, settle(), before the lock is released: events are delivered to
// operations, sessions write, and broken links are taken away, until nothing is left. So no operation is ever called
// while something is half done, and a small message leaves from the thread that sent it.
//
// How it stays fair: the lock has a gate of its own. So a caller that waits gets the lock before the engine's thread,
// which works all the time, can take it again.
//
// How it stays alive: every piece of work runs within attempt(). So an exception ends an epoch and not the process
// (fault.cpp).
//
// Does not: survive a fork: in a child every call throws.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rail/engine/engine.hpp"
#include "rail/engine/seat.hpp"
#include "rail/io/door.hpp"
#include "rail/io/interfaces.hpp"
#include "rail/session/session.hpp"

namespace taskd::rail {

// All epochs that exist now.
constexpr int64_t kEveryEpoch = INT64_MAX;

class EngineCore : public Gate, public SessionHost, public DoorKeeper {
  public:
    EngineCore(Settings settings, SocketLayer& sockets);
    ~EngineCore() override;

    void start();
    // Sessions leave in good order, as far as their peers let them within a time limit; then the thread ends. May be
    // called again.
    void stop();
    void check_process() const;

    const std::string& endpoint() const { return endpoint_; }

    int counters_fd() const { return counters_.fd(); }

    // Runs work for a caller with the lock held. Trouble is passed on to the caller. Any other exception ends the
    // epoch, and then this throws Trouble that says so. Work that is passed by std::cref() begins without allocating
    // memory.
    void call(int64_t epoch, const std::function<void()>& work);

    // ---- with the lock held
    // The barrier: an exception within `work` ends this epoch, all epochs (kEveryEpoch) or none (kNoEpoch) before the
    // lock is released. Returns true if nothing was thrown.
    template <class Work>
    bool attempt(int64_t epoch, const Work& work) noexcept {
        try {
            work();
            return true;
        } catch (...) {
            blame(epoch);
            return false;
        }
    }

    // Throws Trouble. Returns with the lock held, all sessions connected.
    std::vector<std::shared_ptr<Session>> connect(int64_t epoch, const std::vector<Endpoint>& members,
                                                  const std::vector<int>& ranks, size_t me, int64_t within_ns);
    // The two steps of an abort. First all operations fail, and nobody can join any more; then the sessions end. So a
    // thread that waits for an operation need not wait until sockets are closed.
    void give_up(int64_t epoch, const std::string& reason, Failure::Code code = Failure::Code::kAborted);
    void end_epoch(int64_t epoch, const std::string& reason);
    void set_rail(const std::string& name, bool in_use);
    void hear_of_end(int64_t epoch, int rank, const std::string& how);

    void seated(Seat& seat) { seats_.push_back(&seat); }

    void unseated(Seat& seat);
    void forget(Party& party);
    // Drops the event that says that this message was sent.
    void unsay_sent(Party& party, int member, uint32_t part);
    void wake_at(Party& party, int64_t time_ns);

    void after_unlock(std::function<void()> job) { jobs_.push_back(std::move(job)); }

    bool is_over(int64_t epoch) const { return stopping_ || epoch <= over_; }

    bool is_closed() const { return draining_ || stopping_; }

    const Endpoint& me() const { return me_; }

    // ---- Gate
    void lock() override;
    void unlock() override;

    void urge(const std::function<void()>& order) override;

    // ---- SessionHost, DoorKeeper
    int64_t now_ns() const override;

    void post(Event event) override { events_.push_back(std::move(event)); }

    void dirty(Session& session) override;
    void wake_by(int64_t time_ns) override;
    void watch(Session& session, Link& link) override;
    void unwatch(Link& link) override;
    void dial(Session& session, size_t slot) override;
    void changed(Session& session) override;
    void watch(int fd, uint64_t greeting) override;
    void unwatch(int fd, uint64_t greeting) override;
    const Answer* judge(const Hello& hello) override;
    size_t expected() const override;
    void welcomed(const Hello& hello, int fd) override;
    void dialled(const Hello& hello, int fd) override;
    void dial_failed(const Hello& hello, int error, const std::string& trouble) override;
    void count(Stranger stranger) override;
    void blame(int64_t epoch) noexcept override;

  private:
    // What a descriptor in epoll stands for.
    struct Source {
        enum class Kind { kListener, kWake, kTimer, kInterfaces, kGreeting, kLink };
        Kind kind;
        int fd = -1;
        uint64_t greeting = 0;
        Session* session = nullptr;
        size_t slot = 0;
    };

    struct Order {
        const std::function<void()>& work;
        Order* next;
    };

    void open();
    void close_all();
    void listen();
    void run();
    void ready(uint64_t number, uint32_t events);
    void accept_all(uint64_t number);
    void read_links();
    void on_time();
    void call_those_who_wished(int64_t now_ns);
    void breathe();
    // Waits until something has changed; the lock is released meanwhile.
    void wait_for_change(int64_t until_ns);
    void deliver_next();
    void deliver_events();
    void obey();

    bool has_work() const { return !(events_.empty() && failed_.empty() && dirty_.empty() && unfinished_.empty()); }

    void settle() noexcept;
    bool settle_one();
    void note(int64_t epoch, const char* what) noexcept;
    void end_faulty() noexcept;
    std::string fault() const;
    std::string sentence_of_fault(int64_t epoch) const;
    // Throws Trouble if this epoch cannot be joined any more.
    void check_open(int64_t epoch) const;

    // Makes waiting threads check again, also the thread that holds the lock and is about to wait.
    void has_changed() {
        ++change_;
        changes_.notify_all();
    }

    void wake();
    uint64_t add(const Source& source, uint32_t events);
    void remove(int fd);
    Session* session_of(int64_t epoch, const std::string& process);

    Session* session_of(const Hello& hello) { return session_of(hello.epoch, hello.from); }

    void end_sessions(int64_t epoch, const std::string& reason);
    [[noreturn]] void missing(const std::vector<std::shared_ptr<Session>>& sessions, const std::vector<int>& ranks,
                              int64_t epoch, int64_t within_ns);

    const Settings settings_;
    SocketLayer& sockets_;
    const int owner_;  // process
    std::mutex gate_;
    std::mutex mutex_;
    std::condition_variable changes_;
    uint64_t change_ = 0;
    std::atomic<int> waiting_{0};

    int epoll_ = -1;
    int wake_ = -1;
    int timer_ = -1;
    Endpoint me_;
    std::string endpoint_;
    Counters counters_;
    std::unique_ptr<InterfaceWatch> interfaces_;
    std::vector<bool> ordered_;  // by rail
    pthread_t thread_{};
    bool has_thread_ = false;
    bool stopping_ = false;
    bool in_thread_ = false;  // the engine's thread is the one that settles now
    bool draining_ = false;

    // Orders of callers that wait for the lock. The thread that has the lock carries them out.
    std::mutex order_mutex_;
    Order* orders_ = nullptr;
    std::atomic<bool> is_asked_{false};
    bool has_obeyed_ = false;  // so what waits for the release of the lock comes before the rest of the work

    std::unordered_map<uint64_t, Source> sources_;
    std::unordered_map<int, uint64_t> by_fd_;
    uint64_t last_source_ = 0;
    std::deque<uint64_t> readable_;
    std::vector<uint64_t> full_;  // listeners that could not accept; the system does not report them again
    int64_t accept_at_ns_ = INT64_MAX;
    std::map<std::pair<int64_t, std::string>, std::shared_ptr<Session>> sessions_;
    int64_t over_ = INT64_MIN;       // the newest epoch that was aborted
    int64_t faulty_ = INT64_MIN;     // the newest epoch in which something was thrown; it is ended if it is not over
    std::array<char, 256> fault_{};  // the text of that exception; keeping it allocates nothing
    std::array<char, 256> stray_{};  // the same for connections that belong to no epoch yet
    std::vector<Seat*> seats_;
    Door door_;
    std::deque<Event> events_;
    std::vector<Session*> dirty_;
    std::vector<Session*> unfinished_;  // they have more to write than one turn's worth
    std::vector<Session*> failed_;
    std::vector<std::function<void()>> jobs_;
    std::multimap<int64_t, Party*> wishes_;
    std::unordered_map<Party*, int64_t> wish_of_;
    int64_t armed_ns_ = INT64_MAX;
    bool timer_fired_ = false;
    std::unique_ptr<char[]> scratch_;
};

}  // namespace taskd::rail
