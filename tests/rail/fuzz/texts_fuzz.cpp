// Fuzzes what else is parsed or kept by number: endpoints, words of the handshake, headers, numbers that have arrived.
#include <set>
#include <stdexcept>

#include "rail/io/endpoint.hpp"
#include "fuzz.hpp"
#include "rail/io/handshake.hpp"

namespace taskd::rail::test {
namespace {

void endpoints(Random& random) {
    Endpoint endpoint;
    endpoint.process = random.bytes(kProcessIdBytes);
    endpoint.node = random.bytes(random.below(70));
    endpoint.title = random.bytes(random.below(300));
    for (uint64_t rails = 1 + random.below(kMostRails); rails > 0; --rails) {
        const std::string address = random.once_in(2) ? "10.0.0." + std::to_string(random.below(256)) : "fe80::1%lo";
        endpoint.rails.push_back({random.bytes(random.below(40)), address, 1 + static_cast<int>(random.below(65535)),
                                  static_cast<int>(random.below(40))});
    }
    std::string bytes = pack(endpoint);
    const Endpoint again = unpack(bytes);
    CHECK(pack(again) == pack(unpack(pack(again))) && again.rails.size() == endpoint.rails.size());
    mutate(random, bytes);
    try {
        const Endpoint other = unpack(bytes);
        CHECK(!other.rails.empty() && other.rails.size() <= kMostRails && other.process.size() == kProcessIdBytes);
        for (const auto& [here, there] : pair_rails(endpoint, other))
            CHECK(here < endpoint.rails.size() && there < other.rails.size());
    } catch (const std::invalid_argument& refused) {
        CHECK(std::string(refused.what()).size() > 10);
    }
}

void words(Random& random) {
    const std::string bytes = random.bytes(random.below(200));
    Hello hello;
    Answer answer;
    CHECK(!read_hello(bytes, random.bytes(kProcessIdBytes), &hello));
    CHECK(!read_welcome(random.bytes(random.below(20)), &answer) || (answer >= Answer::kWelcome));
    CHECK(!check_challenge("key", bytes, random.bytes(kChallengeBytes)));
    CHECK(!check_proof("key", bytes, random.bytes(kChallengeBytes), random.bytes(kProofBytes)));
}

// If fault_of accepts a header, its piece must not lie outside its message.
void headers(Random& random) {
    FrameHeader header{};
    header.type = static_cast<FrameType>(random.below(14));
    header.flags = static_cast<uint16_t>(random.once_in(4) ? random.odd_number() : random.below(2));
    header.epoch = random.once_in(8) ? static_cast<int64_t>(random.odd_number()) : 5;
    header.number = random.odd_number();
    header.length = static_cast<uint32_t>(random.odd_number());
    header.bytes = random.odd_number();
    header.offset = random.odd_number();
    seal(header);
    if (fault_of(header, 5) == nullptr && header.type == FrameType::kData) {
        CHECK(header.length <= kLongestPiece && header.offset <= header.bytes);
        CHECK(header.length <= header.bytes - header.offset && header.number != 0 && header.epoch == 5);
        CHECK(header.bytes > kEagerBytes || header.length == header.bytes);
    } else if (fault_of(header, 5) == nullptr) {
        CHECK(header.length <= kLongestControl && header.flags == 0);
    }
    reinterpret_cast<char*>(&header)[random.below(sizeof header)] ^= static_cast<char>(1 << random.below(8));
    CHECK(fault_of(header, 5) != nullptr);
}

void arrivals(Random& random) {
    Arrivals arrivals;
    std::set<uint64_t> model;
    for (int turn = 0; turn < 200; ++turn) {
        const uint64_t number = 1 + (random.once_in(50) ? random.odd_number() % kLastNumber : random.below(64));
        CHECK(arrivals.has(number) == (model.count(number) != 0));
        CHECK(arrivals.add(number) == model.insert(number).second);
        uint64_t through = 0;
        while (model.count(through + 1) != 0)
            ++through;
        CHECK(arrivals.through() == through);
        uint64_t before = through;
        size_t above = 0;
        for (const Range& range : arrivals.above()) {
            CHECK(range.first > before && range.first - before > 1 && range.last >= range.first);
            above += range.last - range.first + 1;
            before = range.last;
        }
        CHECK(through + above == model.size());
    }
}

}  // namespace

void fuzz_texts(Random& random) {
    endpoints(random);
    words(random);
    headers(random);
    arrivals(random);
}

}  // namespace taskd::rail::test
