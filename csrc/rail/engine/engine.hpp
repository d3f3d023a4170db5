// One engine per process: a thread in epoll, the listening sockets of every rail, the sessions with other processes,
// and the groups that share them.
//
// Why: many groups talk to the same peers. One set of connections, one thread and one lock for all of them keeps the
// number of descriptors small, lets small operations leave from the caller's own thread, and makes an abort exact: who
// holds the lock knows that nobody reads or writes the caller's memory.
//
// Nothing here spins: the thread sleeps until a socket, a time or a call wakes it, and an idle job has no times.
//
// Does not: choose addresses to publish to others (the caller carries endpoint() from process to process), decide what
// lasts (rails put out of use and back come as orders through set_rail), or know torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rail/collectives/group.hpp"
#include "rail/session/retry.hpp"

namespace taskd::rail {

class SocketLayer;  // socket.hpp: the system's sockets, or ones that fail on purpose

// One rail of this process: a local address with a name that others may have, too.
struct RailSpec {
    std::string name;
    std::string address;    // numeric, IPv4 or IPv6
    std::string interface;  // whose link state speaks for it; empty: nobody's
    bool expected = true;   // false: found, not named; it counts for a peer once it has reached it (counters.hpp)
};

struct Settings {
    std::vector<RailSpec> rails;  // at least one
    std::string key;              // 32 bytes that all processes of the job know
    int first_port = 0;           // 0: whatever is free
    int last_port = 0;
    Retry retry;
    std::string title;  // of this process in sentences: "rank 3"
    std::string node;   // where it runs; travels in the endpoint, and the peers count by it (counters.hpp)
    // What a forked child must not keep (csrc/native/fork_guard.hpp); told of every descriptor, and before it is
    // closed.
    std::function<void(int fd)> close_on_fork;
    std::function<void(int fd)> keep_on_fork;
};

// The caller's fault, or a peer's that cannot be reached; says what to do.
class Trouble : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Engine {
  public:
    // Listens on every rail. Throws Trouble if none can be.
    explicit Engine(Settings settings, SocketLayer* sockets = nullptr);
    // As close().
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Who this is and where it listens: a few hundred bytes for the other members' join().
    const std::string& endpoint() const;

    // A group of these members (endpoints in the order of ranks, all of this epoch), once this process is connected
    // with each of them by one rail at least. `ranks` are the members' numbers in sentences. Throws Trouble after
    // `within`, with the names of those who are missing and of the rails that were tried; also if the epoch has been
    // aborted.
    std::shared_ptr<Group> join(int64_t epoch, const std::string& identity, const std::vector<std::string>& endpoints,
                                const std::vector<int>& ranks, int me, std::chrono::milliseconds within);

    // Ends every group of this epoch and of all before it. When it returns, no memory of theirs is touched any more,
    // their connections are closed, and what their peers still send is refused.
    void abort(int64_t epoch, const std::string& reason);

    // Leaves all peers in good order: what was sent reaches them, also what they have not asked for yet, and no
    // operation of theirs fails that needs nothing more of this process. What is under way here ends with kAborted.
    // Blocks until they have answered, 2 seconds at most. To be called before the process ends; may be called again.
    void close();

    // An order: a rail carries nothing new (false), or may carry again (true). Throws Trouble for an unknown name.
    void set_rail(const std::string& name, bool in_use);

    // Counters of every rail and peer (counters.hpp), in memory that others may map. The descriptor stays the engine's.
    int counters_fd() const;

    struct State;

  private:
    const std::unique_ptr<State> state_;
};

}  // namespace taskd::rail
