// Network interfaces by netlink; interfaces.hpp says what and why.
#include "rail/io/interfaces.hpp"

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

namespace taskd::rail {
namespace {

#ifndef IFF_LOWER_UP
constexpr unsigned IFF_LOWER_UP = 1U << 16;
#endif
constexpr size_t kReceiveBytes = 32 << 10;  // the kernel never makes a larger datagram
constexpr int kDatagramsPerTake = 64;
constexpr int kDatagramsToDrop = 8192;  // more than the socket holds; some milliseconds
constexpr int kListTries = 5;
constexpr int kReceiveBufferBytes = 1 << 20;

}  // namespace

struct News {
    bool is_link = false;  // otherwise it is about an address
    bool is_gone = false;
    int index = 0;
    unsigned flags = 0;
    std::string name;
    std::string kind;
    int master = 0;
    Address address;
};

namespace {

using Attributes = std::map<unsigned short, std::string>;

Attributes attributes_of(const char* bytes, size_t count) {
    Attributes found;
    size_t at = 0;
    while (at + sizeof(rtattr) <= count) {
        rtattr header{};
        std::memcpy(&header, bytes + at, sizeof header);
        if (header.rta_len < sizeof header || header.rta_len > count - at)
            break;
        found[header.rta_type & NLA_TYPE_MASK].assign(bytes + at + RTA_LENGTH(0), header.rta_len - RTA_LENGTH(0));
        at += RTA_ALIGN(header.rta_len);
    }
    return found;
}

std::string text_in(const Attributes& attributes, unsigned short type) {
    const auto found = attributes.find(type);
    return found == attributes.end() ? "" : std::string(found->second.c_str());
}

std::optional<News> link_news(const char* body, size_t count) {
    ifinfomsg info{};
    if (count < sizeof info)
        return {};
    std::memcpy(&info, body, sizeof info);
    // A bridge reports its ports in messages of its own family. These say nothing about the link itself.
    if (info.ifi_family != AF_UNSPEC)
        return {};
    const size_t skip = NLMSG_ALIGN(sizeof info);
    const Attributes attributes = attributes_of(body + std::min(skip, count), count - std::min(skip, count));
    News news;
    news.is_link = true;
    news.index = info.ifi_index;
    news.flags = info.ifi_flags;
    news.name = text_in(attributes, IFLA_IFNAME);
    if (const auto found = attributes.find(IFLA_MASTER);
        found != attributes.end() && found->second.size() == sizeof news.master)
        std::memcpy(&news.master, found->second.data(), sizeof news.master);
    if (const auto found = attributes.find(IFLA_LINKINFO); found != attributes.end())
        news.kind = text_in(attributes_of(found->second.data(), found->second.size()), IFLA_INFO_KIND);
    return news;
}

std::optional<News> address_news(const char* body, size_t count) {
    ifaddrmsg info{};
    if (count < sizeof info)
        return {};
    std::memcpy(&info, body, sizeof info);
    const size_t skip = NLMSG_ALIGN(sizeof info);
    const Attributes attributes = attributes_of(body + std::min(skip, count), count - std::min(skip, count));
    // IFA_ADDRESS is the other end's on a point-to-point link; IFA_LOCAL is missing for IPv6.
    auto found = attributes.find(IFA_LOCAL);
    if (found == attributes.end())
        found = attributes.find(IFA_ADDRESS);
    const size_t wanted = info.ifa_family == AF_INET ? 4 : info.ifa_family == AF_INET6 ? 16 : 0;
    if (found == attributes.end() || wanted == 0 || found->second.size() != wanted)
        return {};
    char text[INET6_ADDRSTRLEN] = {};
    if (inet_ntop(info.ifa_family, found->second.data(), text, sizeof text) == nullptr)
        return {};
    News news;
    news.index = static_cast<int>(info.ifa_index);
    news.address = {text, info.ifa_family, info.ifa_prefixlen};
    return news;
}

struct Batch {
    std::vector<News> news;
    bool is_end = false;          // of a dump
    bool is_interrupted = false;  // the kernel's list changed while it was being sent
    int error = 0;
};

Batch parse(const char* bytes, size_t count) {
    Batch batch;
    size_t at = 0;
    while (at + sizeof(nlmsghdr) <= count) {
        nlmsghdr header{};
        std::memcpy(&header, bytes + at, sizeof header);
        if (header.nlmsg_len < sizeof header || header.nlmsg_len > count - at)
            break;
        const char* const body = bytes + at + NLMSG_HDRLEN;
        const size_t body_count = header.nlmsg_len - std::min<size_t>(NLMSG_HDRLEN, header.nlmsg_len);
        std::optional<News> news;
        batch.is_interrupted |= (header.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
        if (header.nlmsg_type == RTM_NEWLINK || header.nlmsg_type == RTM_DELLINK) {
            news = link_news(body, body_count);
        } else if (header.nlmsg_type == RTM_NEWADDR || header.nlmsg_type == RTM_DELADDR) {
            news = address_news(body, body_count);
        } else if (header.nlmsg_type == NLMSG_DONE) {
            batch.is_end = true;
        } else if (header.nlmsg_type == NLMSG_ERROR && body_count >= sizeof(int)) {
            std::memcpy(&batch.error, body, sizeof batch.error);
            batch.error = -batch.error;
        }
        if (news) {
            news->is_gone = header.nlmsg_type == RTM_DELLINK || header.nlmsg_type == RTM_DELADDR;
            batch.news.push_back(std::move(*news));
        }
        at += NLMSG_ALIGN(header.nlmsg_len);
    }
    return batch;
}

[[noreturn]] void refuse(int error) {
    throw std::system_error(error, std::generic_category(), "the kernel does not list the network interfaces");
}

// Returns -1 and sets errno if netlink is not available.
int open_netlink(uint32_t groups, int flags) noexcept {
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
    if (fd < 0)
        return -1;
    sockaddr_nl local{};
    local.nl_family = AF_NETLINK;
    local.nl_groups = groups;
    if (bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

// Collects the answers to one question, in order. False: the list changed meanwhile. Throws std::system_error.
bool dump(int fd, uint16_t type, std::vector<News>& found) {
    struct {
        nlmsghdr header;
        rtgenmsg body;
    } question{};

    question.header.nlmsg_len = NLMSG_LENGTH(sizeof question.body);
    question.header.nlmsg_type = type;
    question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    question.body.rtgen_family = AF_UNSPEC;
    if (send(fd, &question, question.header.nlmsg_len, 0) < 0)
        refuse(errno);
    std::vector<char> buffer(kReceiveBytes);
    bool is_whole = true;
    for (;;) {
        const ssize_t count = recv(fd, buffer.data(), buffer.size(), 0);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            refuse(count == 0 ? EPROTO : errno);
        Batch batch = parse(buffer.data(), static_cast<size_t>(count));
        if (batch.error != 0)
            refuse(batch.error);
        is_whole = is_whole && !batch.is_interrupted;
        for (News& news : batch.news)
            found.push_back(std::move(news));
        if (batch.is_end)
            return is_whole;
    }
}

std::vector<News> list_everything() {
    struct Closer {
        int fd;

        ~Closer() { close(fd); }
    };

    const int fd = open_netlink(0, 0);
    if (fd < 0)
        refuse(errno);
    const Closer closer{fd};
    std::vector<News> found;
    for (int turn = 0; turn < kListTries; ++turn) {
        found.clear();
        if (dump(fd, RTM_GETLINK, found) && dump(fd, RTM_GETADDR, found))
            break;
    }
    return found;
}

}  // namespace

std::vector<Interface> list_interfaces() {
    std::vector<Interface> interfaces;
    for (News& news : list_everything()) {
        if (news.is_link) {
            Interface interface;
            interface.name = std::move(news.name);
            interface.index = news.index;
            interface.up = (news.flags & IFF_UP) != 0;
            interface.carrier = (news.flags & IFF_LOWER_UP) != 0;
            interface.loopback = (news.flags & IFF_LOOPBACK) != 0;
            interface.master = news.master;
            interface.kind = std::move(news.kind);
            interfaces.push_back(std::move(interface));
            continue;
        }
        for (Interface& interface : interfaces) {
            if (interface.index == news.index)
                interface.addresses.push_back(news.address);
        }
    }
    return interfaces;
}

InterfaceWatch::InterfaceWatch(std::vector<Watched> watched) : watched_(std::move(watched)), states_(watched_.size()) {
    const auto is_nobodys = [](const Watched& one) { return one.interface.empty(); };
    if (std::all_of(watched_.begin(), watched_.end(), is_nobodys))
        return;
    // The subscription begins before the first list is made, so that no news falls between the two.
    fd_ = open_netlink(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR, SOCK_NONBLOCK);
    if (fd_ < 0)
        return;
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes, sizeof kReceiveBufferBytes);
    if (!list_again()) {
        close(fd_);
        fd_ = -1;
        return;
    }
    for (size_t index = 0; index < watched_.size(); ++index)
        states_[index] = judge(watched_[index]);
}

InterfaceWatch::~InterfaceWatch() {
    if (fd_ >= 0)
        close(fd_);
}

bool InterfaceWatch::list_again() {
    try {
        const std::vector<News> everything = list_everything();
        links_.clear();
        for (const News& news : everything)
            note(news);
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

std::vector<InterfaceChange> InterfaceWatch::take() {
    std::vector<InterfaceChange> changes;
    std::vector<char> buffer(kReceiveBytes);
    for (int turn = 0; turn < (has_lost_news_ ? kDatagramsToDrop : kDatagramsPerTake) && fd_ >= 0; ++turn) {
        sockaddr_nl sender{};
        socklen_t sender_bytes = sizeof sender;
        const ssize_t count =
            recvfrom(fd_, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&sender), &sender_bytes);
        if (count >= 0 && !has_lost_news_ && sender.nl_pid == 0) {
            for (const News& news : parse(buffer.data(), static_cast<size_t>(count)).news)
                note(news);
        } else if (count < 0 && errno == ENOBUFS) {
            // There was more news than the socket holds. The kernel says so once, and then drops news silently until
            // the socket is empty. Only after that does a new list show everything.
            has_lost_news_ = true;
        } else if (count < 0 && errno != EINTR) {
            if (has_lost_news_ && list_again())
                has_lost_news_ = false;
            break;
        }
    }
    for (size_t index = 0; index < watched_.size() && fd_ >= 0; ++index) {
        State state = judge(watched_[index]);
        if (state.usable != states_[index].usable)
            changes.push_back({index, state.usable, state.reason});
        states_[index] = std::move(state);
    }
    return changes;
}

void InterfaceWatch::note(const News& news) {
    const auto known = links_.find(news.index);
    if (!news.is_link) {
        if (known == links_.end())
            return;
        if (news.is_gone)
            known->second.addresses.erase(news.address.text);
        else
            known->second.addresses.insert(news.address.text);
    } else if (news.is_gone) {
        links_.erase(news.index);
    } else {
        Link& link = known != links_.end() ? known->second : links_[news.index];
        if (!news.name.empty())
            link.name = news.name;
        link.flags = news.flags;
    }
}

InterfaceWatch::State InterfaceWatch::judge(const Watched& watched) const {
    if (watched.interface.empty())
        return {};
    const std::string name = "interface " + watched.interface;
    for (const auto& [index, link] : links_) {
        if (link.name != watched.interface)
            continue;
        if ((link.flags & IFF_UP) == 0)
            return {false, name + " is switched off"};
        if ((link.flags & IFF_LOWER_UP) == 0)
            return {false, name + " has no carrier"};
        if (!watched.address.empty() && link.addresses.count(watched.address) == 0)
            return {false, name + " does not have the address " + watched.address};
        return {true, name + " is up"};
    }
    return {false, "there is no " + name};
}

}  // namespace taskd::rail
