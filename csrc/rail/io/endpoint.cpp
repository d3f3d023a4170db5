#include "rail/io/endpoint.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace taskd::rail {
namespace {

constexpr char kFormat[] = "TSRE1";
constexpr size_t kLongestText = 255;

void put(std::string& out, const std::string& text) {
    const std::string cut = text.substr(0, kLongestText);
    out.push_back(static_cast<char>(cut.size()));
    out += cut;
}

void put(std::string& out, int number) {
    for (int shift = 0; shift < 32; shift += 8)
        out.push_back(static_cast<char>((static_cast<uint32_t>(number) >> shift) & 0xff));
}

class Reader {
  public:
    explicit Reader(const std::string& bytes) : bytes_(bytes) {}

    std::string take(size_t count) {
        if (count > bytes_.size() - at_)
            throw std::invalid_argument("An endpoint ends too early: it was cut off on its way.");
        at_ += count;
        return bytes_.substr(at_ - count, count);
    }

    std::string text() { return take(static_cast<uint8_t>(take(1)[0])); }

    int number() {
        const std::string four = take(4);
        uint32_t value = 0;
        for (int index = 3; index >= 0; --index)
            value = value << 8 | static_cast<uint8_t>(four[static_cast<size_t>(index)]);
        return static_cast<int>(value);
    }

    bool at_end() const { return at_ == bytes_.size(); }

  private:
    const std::string& bytes_;
    size_t at_ = 0;
};

std::string bits_of(const std::string& address) {
    const std::string bare = address.substr(0, address.find('%'));
    char bytes[sizeof(in6_addr)];
    if (inet_pton(AF_INET, bare.c_str(), bytes) == 1)
        return std::string(bytes, sizeof(in_addr));
    if (inet_pton(AF_INET6, bare.c_str(), bytes) == 1)
        return std::string(bytes, sizeof(in6_addr));
    return "";
}

bool same_family(const EndpointRail& one, const EndpointRail& other) {
    return bits_of(one.address).size() == bits_of(other.address).size();
}

bool same_network(const EndpointRail& one, const EndpointRail& other) {
    const std::string first = bits_of(one.address);
    const std::string second = bits_of(other.address);
    if (first.size() != second.size() || one.prefix != other.prefix || one.prefix <= 0)
        return false;
    for (int bit = 0; bit < one.prefix && bit < static_cast<int>(8 * first.size()); ++bit) {
        const auto byte = static_cast<size_t>(bit / 8);
        if (((first[byte] ^ second[byte]) >> (7 - bit % 8) & 1) != 0)
            return false;
    }
    return true;
}

}  // namespace

std::string pack(const Endpoint& endpoint) {
    std::string out(kFormat, sizeof kFormat - 1);
    out += endpoint.process;
    put(out, endpoint.node);
    put(out, endpoint.title);
    put(out, static_cast<int>(endpoint.rails.size()));
    for (const EndpointRail& rail : endpoint.rails) {
        put(out, rail.name);
        put(out, rail.address);
        put(out, rail.port);
        put(out, rail.prefix);
    }
    return out;
}

Endpoint unpack(const std::string& bytes) {
    if (bytes.size() > kLongestEndpoint || bytes.compare(0, sizeof kFormat - 1, kFormat) != 0)
        throw std::invalid_argument("This is no endpoint of a rail engine: pass what Engine::endpoint() returned.");
    Reader reader(bytes);
    reader.take(sizeof kFormat - 1);
    Endpoint endpoint;
    endpoint.process = reader.take(kProcessIdBytes);
    endpoint.node = reader.text();
    endpoint.title = reader.text();
    const int count = reader.number();
    if (count < 1 || count > static_cast<int>(kMostRails))
        throw std::invalid_argument("An endpoint names " + std::to_string(count) + " rails; 1 to 16 can be.");
    for (int index = 0; index < count; ++index) {
        EndpointRail rail;
        rail.name = reader.text();
        rail.address = reader.text();
        rail.port = reader.number();
        rail.prefix = reader.number();
        if (rail.port < 1 || rail.port > 65535 || bits_of(rail.address).empty())
            throw std::invalid_argument("An endpoint has a rail with an impossible address.");
        endpoint.rails.push_back(rail);
    }
    if (!reader.at_end())
        throw std::invalid_argument("An endpoint has more bytes than it should.");
    return endpoint;
}

std::vector<std::pair<size_t, size_t>> pair_rails(const Endpoint& dialler, const Endpoint& acceptor) {
    std::vector<std::pair<size_t, size_t>> pairs;
    std::vector<bool> taken_here(dialler.rails.size());
    std::vector<bool> taken_there(acceptor.rails.size());
    const auto match = [&](auto fits) {
        for (size_t here = 0; here < taken_here.size(); ++here) {
            for (size_t there = 0; there < taken_there.size() && !taken_here[here]; ++there) {
                if (taken_there[there] || !fits(dialler.rails[here], acceptor.rails[there]))
                    continue;
                pairs.emplace_back(here, there);
                taken_here[here] = taken_there[there] = true;
            }
        }
    };
    const auto same_name = [](const EndpointRail& one, const EndpointRail& other) {
        return one.name == other.name && same_family(one, other);
    };
    match([&](const EndpointRail& one, const EndpointRail& other) {
        return same_name(one, other) && same_network(one, other);
    });
    match(same_network);
    match(same_name);
    match(same_family);
    std::sort(pairs.begin(), pairs.end());
    return pairs;
}

}  // namespace taskd::rail
