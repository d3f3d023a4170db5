// SHA-256 and HMAC for the job's key, after FIPS 180-4 and RFC 2104; key.hpp says what and why.
#include "rail/io/key.hpp"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace taskd::rail {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kRounds = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, kRounds> kConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Words = std::array<uint32_t, 8>;

constexpr uint32_t rotate(uint32_t value, int bits) {
    return (value >> bits) | (value << (32 - bits));
}

uint32_t word_at(const uint8_t* bytes) {
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void mix_block(Words& state, const uint8_t* block) {
    std::array<uint32_t, kRounds> schedule;
    for (size_t round = 0; round < 16; ++round)
        schedule[round] = word_at(block + 4 * round);
    for (size_t round = 16; round < kRounds; ++round) {
        const uint32_t early = schedule[round - 15];
        const uint32_t late = schedule[round - 2];
        schedule[round] = schedule[round - 16] + (rotate(early, 7) ^ rotate(early, 18) ^ (early >> 3)) +
                          schedule[round - 7] + (rotate(late, 17) ^ rotate(late, 19) ^ (late >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t round = 0; round < kRounds; ++round) {
        const uint32_t one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                             kConstants[round] + schedule[round];
        const uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + one;
        d = c;
        c = b;
        b = a;
        a = one + two;
    }
    const Words mixed = {a, b, c, d, e, f, g, h};
    for (size_t index = 0; index < state.size(); ++index)
        state[index] += mixed[index];
}

}  // namespace

std::string sha256(const std::string& text) {
    // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
    Words state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    // A one bit, zeros up to the last eight bytes of a block, and the number of bits.
    std::string padded = text;
    padded.push_back('\x80');
    padded.append((2 * kBlockBytes - 8 - padded.size() % kBlockBytes) % kBlockBytes, '\0');
    const uint64_t bits = uint64_t{text.size()} * 8;
    for (int shift = 56; shift >= 0; shift -= 8)
        padded.push_back(static_cast<char>(bits >> shift));
    for (size_t at = 0; at < padded.size(); at += kBlockBytes)
        mix_block(state, reinterpret_cast<const uint8_t*>(padded.data()) + at);
    std::string digest;
    for (const uint32_t word : state) {
        for (int shift = 24; shift >= 0; shift -= 8)
            digest.push_back(static_cast<char>(word >> shift));
    }
    return digest;
}

std::string hmac_sha256(const std::string& key, const std::string& text) {
    std::string inner = key.size() > kBlockBytes ? sha256(key) : key;
    inner.resize(kBlockBytes, '\0');
    std::string outer = inner;
    for (size_t index = 0; index < kBlockBytes; ++index) {
        inner[index] = static_cast<char>(inner[index] ^ 0x36);
        outer[index] = static_cast<char>(outer[index] ^ 0x5c);
    }
    return sha256(outer + sha256(inner + text));
}

bool same_bytes(const std::string& one, const std::string& other) noexcept {
    if (one.size() != other.size())
        return false;
    // Volatile, so that no compiler can stop at the first difference.
    volatile unsigned char difference = 0;
    for (size_t index = 0; index < one.size(); ++index)
        difference = static_cast<unsigned char>(difference | (one[index] ^ other[index]));
    return difference == 0;
}

std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    size_t done = 0;
    while (done < count) {
        const ssize_t got = getrandom(&bytes[done], count - done, 0);
        if (got < 0 && errno != EINTR)
            throw std::system_error(errno, std::generic_category(), "cannot get random bytes");
        if (got > 0)
            done += static_cast<size_t>(got);
    }
    return bytes;
}

}  // namespace taskd::rail
