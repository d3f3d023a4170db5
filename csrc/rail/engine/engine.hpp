// The engine, one per process: a thread in epoll, the listening sockets of every rail, the sessions with other
// processes, and the groups that share them.
//
// Why: many groups talk to the same peers. One set of connections, one thread and one lock for all of them keep the
// number of descriptors small and let small operations leave from the caller's own thread. They also make an abort
// exact: a thread that holds the lock knows that nothing reads or writes the caller's memory.
//
// Nothing here spins: the thread sleeps until a socket, a timer or a call wakes it. An idle job sets no timers.
//
// Does not: choose addresses to publish to others (the caller carries endpoint() from process to process), decide what
// is permanent (orders through set_rail put rails out of use and back), or know torch.
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

class SocketLayer;  // socket.hpp: the system's sockets, or sockets that fail on purpose

// One rail of this process: a local address with a name. Other processes may use the same name.
struct RailSpec {
    std::string name;
    std::string address;    // numeric, IPv4 or IPv6
    std::string interface;  // its link state counts for the rail; empty: no link state is watched
    bool expected = true;   // false: found, not named; counts for a peer once it has reached that peer (counters.hpp)
};

struct Settings {
    std::vector<RailSpec> rails;  // at least one
    std::string key;              // 32 bytes that all processes of the job know
    int first_port = 0;           // 0: any free port
    int last_port = 0;
    Retry retry;
    std::string title;  // how messages name this process: "rank 3"
    std::string node;   // where it runs; it travels in the endpoint, and the peers count by it (counters.hpp)
    // What a forked child must not keep (csrc/native/fork_guard.hpp): the first is called for every new descriptor, the
    // second before it is closed.
    std::function<void(int fd)> close_on_fork;
    std::function<void(int fd)> keep_on_fork;
};

// An error of the caller, or a peer that cannot be reached; the text says what to do.
class Trouble : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Engine {
  public:
    // Listens on every rail. Throws Trouble if it can listen on none.
    explicit Engine(Settings settings, SocketLayer* sockets = nullptr);
    // Does what close() does.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Who this process is and where it listens: a few hundred bytes for the other members' join().
    const std::string& endpoint() const;

    // Makes a group of these members, once this process is connected with each of them by at least one rail.
    // `endpoints` are in the order of ranks, all of this epoch; `ranks` are the members' numbers in messages. Throws
    // Trouble after `within`, with the names of the missing members and of the rails that were tried; also if the epoch
    // has been aborted.
    std::shared_ptr<Group> join(int64_t epoch, const std::string& identity, const std::vector<std::string>& endpoints,
                                const std::vector<int>& ranks, int me, std::chrono::milliseconds within);

    // Ends every group of this epoch and of all epochs before it. When it returns, their memory is not touched any
    // more, their connections are closed, and what their peers still send is refused.
    void abort(int64_t epoch, const std::string& reason);

    // Leaves all peers in good order. What was sent reaches them, even what they have not asked for yet. An operation
    // of theirs does not fail if it needs nothing more of this process. What is under way here ends with kAborted.
    // Blocks until they have answered, 2 seconds at most. Call it before the process ends; it may be called again.
    void close();

    // Gives an order: a rail carries nothing new (false), or may carry again (true). Throws Trouble for an unknown
    // name.
    void set_rail(const std::string& name, bool in_use);

    // Says that the process with this number, as join() was given it, has ended in this epoch or before: `how`, in
    // words that follow "it has left: ". What it sent still arrives. Once no connection with it is left, operations
    // that wait for it fail at once; no rail is dialled and nothing is held. A process that lives after all loses
    // nothing.
    void hear_of_end(int64_t epoch, int rank, const std::string& how);

    // The counters of every rail and peer (counters.hpp), in memory that other processes may map. The engine keeps
    // ownership of the descriptor.
    int counters_fd() const;

    struct State;

  private:
    const std::unique_ptr<State> state_;
};

}  // namespace taskd::rail
