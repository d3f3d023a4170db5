// What a process tells the others before they connect: who it is and where it listens; and which of two processes'
// rails belong together.
//
// Why pairing is a function of both endpoints and nothing else: both sides compute it and must agree without a word.
//
// Does not: publish anything, or try whether an address answers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace taskd::rail {

constexpr size_t kProcessIdBytes = 16;
constexpr size_t kMostRails = 16;
constexpr size_t kLongestEndpoint = 8192;

struct EndpointRail {
    std::string name;
    std::string address;  // numeric
    int port = 0;
    int prefix = 0;           // bits of the network part; 0: unknown
    bool is_expected = true;  // known at home only (RailSpec); does not travel
};

struct Endpoint {
    std::string process;  // kProcessIdBytes random bytes
    std::string node;
    std::string title;
    std::vector<EndpointRail> rails;
};

std::string pack(const Endpoint& endpoint);
// Throws std::invalid_argument with one sentence for anything that pack() cannot have made.
Endpoint unpack(const std::string& bytes);

// Indices of rails that are connected: of the first (the dialler's) and of the second. By network, first those that
// have the same name as well; what is left, by name; what is left, in order. The network goes first because names that
// the system gave say nothing of where a cable leads. Where one side has a single rail, it pairs with one of the other.
std::vector<std::pair<size_t, size_t>> pair_rails(const Endpoint& dialler, const Endpoint& acceptor);

}  // namespace taskd::rail
