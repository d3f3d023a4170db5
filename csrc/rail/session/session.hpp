// All connections with one other process in one epoch: what is sent over them, what comes, and how they stand.
//
// Why one for all groups: the rails and their state belong to the pair of processes, and a frame that one link loses is
// carried by another without any group's notice. A session belongs to one epoch and so do its connections: what is old
// dies with its socket.
//
// What it is made of, and who knows what:
//
//     Lifecycle      open, leaving, parted, over; why it is over
//     Paths          one Path for each pair of rails: its connection, and down, dialling, up, late, suspect or dead
//     Connections    dials paths that have none, and closes all
//     Traffic        what groups send and receive (Outbox, Inbox)
//     Sender         which frame goes on which path (Scheduler), and what goes a second time (Overtaking)
//     Acknowledger   what has come, and when that is said
//     Prober         asks on all paths at once, and takes the answers
//     SilenceWatch   finds paths that are silent, and a network that is (LossWatch)
//     Farewell       the last words
//
// A session only routes: what the engine tells it and what a link brings goes to the part that is meant, and what
// follows for other parts is decided here. It is driven from outside, with the engine's lock held: told when a socket
// is ready, when a time has come, when somebody wants to send.
//
// Does not: accept, dial or wait (engine/core.hpp), or know what a group is beyond whom to ask for an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rail/counters.hpp"
#include "rail/io/endpoint.hpp"
#include "rail/io/link.hpp"
#include "rail/session/acknowledger.hpp"
#include "rail/session/connections.hpp"
#include "rail/session/farewell.hpp"
#include "rail/session/host.hpp"
#include "rail/session/lifecycle.hpp"
#include "rail/session/loss_watch.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/prober.hpp"
#include "rail/session/retry.hpp"
#include "rail/session/sender.hpp"
#include "rail/session/silence_watch.hpp"
#include "rail/session/traffic.hpp"

namespace taskd::rail {

// The two processes of a session, and its epoch.
struct Pair {
    int64_t epoch = 0;
    Endpoint me;
    Endpoint peer;
    int peer_rank = -1;

    // One of the two does, and both know which.
    bool dials() const { return me.process < peer.process; }
};

class Session : public LinkReader {
  public:
    Session(SessionHost& host, SocketLayer& sockets, Counters& counters, const Retry& retry, Pair pair);
    ~Session() override;

    const Pair& pair() const { return pair_; }

    // How far it has come, and why it is over.
    const Lifecycle& life() const { return life_; }

    Paths& paths() { return paths_; }

    // What groups have of it.
    Traffic& traffic() { return traffic_; }

    // ---- for the engine
    // The path has a connection.
    void attach(size_t path, int fd);
    void dial_failed(size_t path, int error, const std::string& trouble);
    void set_interface(size_t rail_here, bool usable, const std::string& reason);
    void set_order(size_t rail_here, bool in_use);
    // Takes broken links away; true if there were any.
    bool reap();
    // Writes what can be written. True: there is more than one turn's worth.
    bool pump();
    void on_time(int64_t now_ns);
    int64_t next_ns(int64_t now_ns) const;
    // Says farewell in good order, as soon as everything sent is acknowledged.
    void leave(const std::string& reason);
    // Says farewell and closes everything. No memory is touched afterwards.
    void end(const std::string& reason);

    // ---- LinkReader
    char* data_begins(Link& link, const FrameHeader& header) override;
    void data_ended(Link& link, const FrameHeader& header, bool counts) override;
    void control(Link& link, const FrameHeader& header, const char* payload) override;

  private:
    void lose(Path& path, int error, const char* fault);
    void check_hold(int64_t now_ns);
    void fail(const std::string& text);

    const BoundHost host_;
    SocketLayer& sockets_;
    Counters& counters_;
    const Pair pair_;
    Lifecycle life_;
    Paths paths_;
    Connections connections_;
    Traffic traffic_;
    Acknowledger acknowledger_;
    Prober prober_;
    Sender sender_;
    LossWatch loss_watch_;
    SilenceWatch silence_watch_;
    Farewell farewell_;
};

// Rails, addresses, and what is wrong with each.
std::string what_was_tried(const Pair& pair, const Lifecycle& life, const Paths& paths);

}  // namespace taskd::rail
