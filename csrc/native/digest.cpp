#include "native/digest.hpp"

#include <cstring>

namespace taskd::native {
namespace {

constexpr size_t kLanes = 8;  // independent of each other, so that the processor multiplies for several at once
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
constexpr uint64_t kOther = 0xC2B2AE3D27D4EB4F;

uint64_t load(const unsigned char* from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// Each of these is invertible as long as the other argument is known.
uint64_t take(uint64_t state, uint64_t word) {
    return (state ^ word) * kOdd;
}

uint64_t mix(uint64_t state) {
    state ^= state >> 33;
    state *= kOther;
    state ^= state >> 29;
    return state;
}

}  // namespace

uint64_t digest(const void* data, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    uint64_t lanes[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] = kOther * (lane + 1);
    size_t left = bytes;
    for (; left >= sizeof lanes; left -= sizeof lanes, at += sizeof lanes) {
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const uint64_t mixed = take(lanes[lane], load(at + lane * sizeof(uint64_t)));
            lanes[lane] = mixed ^ (mixed >> 32);  // else the highest bit would never leave its place
        }
    }
    uint64_t found = mix(bytes + 1);
    for (const uint64_t lane : lanes)
        found = mix(take(found, lane));
    for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t))
        found = mix(take(found, load(at)));
    if (left > 0) {
        uint64_t rest = 0;
        std::memcpy(&rest, at, left);
        found = mix(take(found, rest));
    }
    return found;
}

}  // namespace taskd::native
