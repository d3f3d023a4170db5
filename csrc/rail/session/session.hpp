// All connections with one other process in one epoch: what is sent over them, what arrives, and their state.
//
// Why one session for all groups: the rails and their state belong to the pair of processes. A frame that one link
// loses is carried by another, and no group notices it. A session and its connections belong to one epoch, so old data
// dies with its socket.
//
// Its parts, and what each part knows:
//
//     Lifecycle      open, leaving, parted, over; why it is over
//     Paths          one Path for each pair of rails: its connection, and down, dialling, up, late, suspect or dead
//     Connections    dials paths that have no connection, and closes all
//     Traffic        what groups send and receive (Outbox, Inbox)
//     Sender         which frame goes on which path (Scheduler), and which is sent a second time (Overtaking)
//     Acknowledger   what has arrived, and when that is acknowledged
//     Prober         sends probes on all paths at once, and takes the answers
//     SilenceWatch   finds paths that are silent, and a network that is silent as a whole (LossWatch)
//     Farewell       the last words
//
// A session only routes. It passes each call of the engine and each frame of a link to the right part, and decides what
// other parts must do as a result. It is driven from outside, with the engine's lock held: the engine tells it that a
// socket is ready, that a time has come, or that somebody wants to send.
//
// Does not: accept, dial or wait (engine/core.hpp does). It knows nothing about a group except whom to ask for an
// operation.
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

    // Only one of the two processes dials, and both know which one.
    bool dials() const { return me.process < peer.process; }
};

class Session : public LinkReader {
  public:
    Session(SessionHost& host, SocketLayer& sockets, Counters& counters, const Retry& retry, Pair pair);
    ~Session() override;

    const Pair& pair() const { return pair_; }

    // Its stage, and why it is over.
    const Lifecycle& life() const { return life_; }

    Paths& paths() { return paths_; }

    // What groups use of it.
    Traffic& traffic() { return traffic_; }

    // ---- for the engine
    // The path has got a connection.
    void attach(size_t path, int fd);
    void dial_failed(size_t path, int error, const std::string& trouble);
    void set_interface(size_t rail_here, bool usable, const std::string& reason);
    void set_order(size_t rail_here, bool in_use);
    // Takes broken links away. True: there were some.
    bool reap();
    // Writes what can be written. True: more than one turn's worth is left.
    bool pump();
    void on_time(int64_t now_ns);
    int64_t next_ns(int64_t now_ns) const;
    // Says farewell in good order as soon as everything that was sent has been acknowledged.
    void leave(const std::string& reason);
    // The other process has ended, which somebody else has seen. What it sent still arrives; nothing is dialled for.
    void hear_of_end(const std::string& how);
    // Says farewell and closes everything. After that no memory is touched any more.
    void end(const std::string& reason);

    // ---- LinkReader
    char* data_begins(Link& link, const FrameHeader& header) override;
    void data_ended(Link& link, const FrameHeader& header, bool counts) override;
    void control(Link& link, const FrameHeader& header, const char* payload) override;

  private:
    void lose(Path& path, int error, const char* fault);
    void check_hold(int64_t now_ns);
    void part(Lifecycle::Parting manner);
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

// Names the rails, their addresses, and what is wrong with each.
std::string what_was_tried(const Pair& pair, const Lifecycle& life, const Paths& paths);

}  // namespace taskd::rail
