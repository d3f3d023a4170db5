// The endpoint: what a process tells the others before they connect, that is, who it is and where it listens. Also
// which rails of two processes belong together.
//
// Why pairing is a function of both endpoints and nothing else: both sides compute it, and must agree without talking.
//
// Does not: publish anything, or test whether an address answers.
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
    bool is_expected = true;  // known to this process only (RailSpec); it does not travel
};

struct Endpoint {
    std::string process;  // kProcessIdBytes random bytes
    std::string node;
    std::string title;
    std::vector<EndpointRail> rails;
};

std::string pack(const Endpoint& endpoint);
// Throws std::invalid_argument with one sentence for bytes that pack() cannot have made.
Endpoint unpack(const std::string& bytes);

// Returns the indices of rails that are connected: of the first process (the dialler) and of the second. Rails pair by
// network first, and among these rails with the same name come first. The remaining rails pair by name, and the rest in
// order. The network goes first because names that the system chose do not say where a cable leads. If one side has a
// single rail, it pairs with one rail of the other side.
std::vector<std::pair<size_t, size_t>> pair_rails(const Endpoint& dialler, const Endpoint& acceptor);

}  // namespace taskd::rail
