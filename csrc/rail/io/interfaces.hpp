// The network interfaces of this host: which there are, and the news that one has gone down or come back.
//
// Why: a pulled cable is known to the kernel at once, and every connection over it would otherwise be silent for as
// long as TCP is patient. A netlink socket tells it without privileges. The news are levels, not edges: each pair of
// interface and address that is watched either can carry or cannot, and take() says for which that has changed.
//
// Where netlink is refused (some sandboxes), nothing is watched and nothing is said: silence is then found by its age.
//
// Does not: decide what a change means for a rail, or wait: the descriptor goes into somebody's epoll.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace taskd::rail {

struct News;  // one message of the kernel's

struct Address {
    std::string text;  // numeric, without a scope
    int family = 0;    // AF_INET or AF_INET6
    int prefix = 0;    // bits of the network part
};

struct Interface {
    std::string name;
    int index = 0;
    bool up = false;       // switched on by its administrator
    bool carrier = false;  // and something answers at the other end of the cable
    bool loopback = false;
    int master = 0;    // the index of the bridge or bond that it is a part of
    std::string kind;  // of a virtual one: "bridge", "veth", "bond" and so on; empty: hardware
    std::vector<Address> addresses;
};

// All of them, in the kernel's order. Throws std::system_error where the kernel does not tell.
std::vector<Interface> list_interfaces();

// Whose state is watched. An empty address stands for the interface alone; an empty interface is nobody's, and always
// usable.
struct Watched {
    std::string interface;
    std::string address;
};

struct InterfaceChange {
    size_t index = 0;  // into the vector that was given to the watch
    bool usable = false;
    std::string reason;  // "eth1 has no carrier"
};

class InterfaceWatch {
  public:
    // Never throws for want of netlink: fd() is -1 then, and everything is taken to be usable.
    explicit InterfaceWatch(std::vector<Watched> watched);
    ~InterfaceWatch();
    InterfaceWatch(const InterfaceWatch&) = delete;
    InterfaceWatch& operator=(const InterfaceWatch&) = delete;

    // Readable when there may be news; -1: there never are.
    int fd() const noexcept { return fd_; }

    bool usable(size_t index) const { return states_[index].usable; }

    const std::string& reason(size_t index) const { return states_[index].reason; }

    // What has changed since the last call, at most one change for each. Reads a bounded number of messages; the
    // descriptor stays readable if there are more. Never blocks.
    std::vector<InterfaceChange> take();

  private:
    struct Link {
        std::string name;
        unsigned flags = 0;
        std::set<std::string> addresses;
    };

    struct State {
        bool usable = true;
        std::string reason;
    };

    bool list_again();
    void note(const News& news);
    State judge(const Watched& watched) const;

    const std::vector<Watched> watched_;
    std::vector<State> states_;
    std::map<int, Link> links_;  // all of them, by index: an interface may get its name later
    bool has_lost_news_ = false;
    int fd_ = -1;
};

}  // namespace taskd::rail
