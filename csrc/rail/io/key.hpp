// The cryptography of the job's key: SHA-256, HMAC-SHA256, a comparison in constant time, and random bytes from the
// kernel.
//
// Why here: peers prove to each other that they know the key before anything else from them is read. Two functions of a
// hundred lines cost less than a library that every process would have to load. They run a few times per connection,
// never per frame, so they are written for readability and not for speed.
//
// Does not: choose, keep or hand out keys (the manager does), or encrypt anything.
#pragma once

#include <cstddef>
#include <string>

namespace taskd::rail {

constexpr size_t kDigestBytes = 32;

// 32 bytes.
std::string sha256(const std::string& text);

// 32 bytes (RFC 2104 with SHA-256).
std::string hmac_sha256(const std::string& key, const std::string& text);

// Whether both are the same. The time it takes depends on the lengths only. So a stranger who guesses a proof byte by
// byte learns nothing from the clock.
bool same_bytes(const std::string& one, const std::string& other) noexcept;

// Unpredictable bytes from getrandom(). Throws std::system_error.
std::string random_bytes(size_t count);

}  // namespace taskd::rail
