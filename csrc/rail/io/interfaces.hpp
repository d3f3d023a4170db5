// The network interfaces of this host: a list of them, and news when one has gone down or come back.
//
// Why: the kernel notices a pulled cable at once. Without this news, every connection over that cable would be silent
// for as long as TCP is patient. A netlink socket reports it without privileges. The news are levels, not edges: each
// watched pair of interface and address either can carry traffic or cannot, and take() says for which pairs this has
// changed.
//
// Where netlink is refused (some sandboxes), nothing is watched and nothing is reported. Silence is then found by its
// age.
//
// Does not: decide what a change means for a rail, or wait: the descriptor goes into the caller's epoll.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace taskd::rail {

struct News;  // one message of the kernel

struct Address {
    std::string text;  // numeric, without a scope
    int family = 0;    // AF_INET or AF_INET6
    int prefix = 0;    // bits of the network part
};

struct Interface {
    std::string name;
    int index = 0;
    bool up = false;       // switched on by its administrator
    bool carrier = false;  // and the other end of the cable answers
    bool loopback = false;
    int master = 0;    // the index of the bridge or bond that it belongs to
    std::string kind;  // of a virtual interface: "bridge", "veth", "bond" and so on; empty: hardware
    std::vector<Address> addresses;
};

// Returns all interfaces, in the kernel's order. Throws std::system_error if the kernel refuses the list.
std::vector<Interface> list_interfaces();

// What is watched. An empty address: only the interface counts. An empty interface: nothing is watched, and the entry
// is always usable.
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
    // Does not throw if netlink is missing: then fd() is -1, and everything counts as usable.
    explicit InterfaceWatch(std::vector<Watched> watched);
    ~InterfaceWatch();
    InterfaceWatch(const InterfaceWatch&) = delete;
    InterfaceWatch& operator=(const InterfaceWatch&) = delete;

    // Readable when there may be news; -1: there is never any.
    int fd() const noexcept { return fd_; }

    bool usable(size_t index) const { return states_[index].usable; }

    const std::string& reason(size_t index) const { return states_[index].reason; }

    // Returns what has changed since the last call, at most one change per entry. Reads a bounded number of messages;
    // the descriptor stays readable if there are more. Never blocks.
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
    std::map<int, Link> links_;  // all interfaces, by index: an interface may get its name later
    bool has_lost_news_ = false;
    int fd_ = -1;
};

}  // namespace taskd::rail
