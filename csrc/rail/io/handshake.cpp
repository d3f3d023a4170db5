#include "rail/io/handshake.hpp"

#include <cstring>

#include "rail/io/endpoint.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail {
namespace {

constexpr char kMagic[] = "TSRH0001";
constexpr size_t kMagicBytes = 8;
constexpr size_t kRandomBytes = 32;

static_assert(kHelloBytes == kMagicBytes + 2 * kProcessIdBytes + 8 + 8 + kRandomBytes);
static_assert(kChallengeBytes == kMagicBytes + kProcessIdBytes + kRandomBytes + kProofBytes);

template <class Number>
std::string bytes_of(Number number) {
    return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

bool begins_well(const std::string& bytes) {
    return bytes.compare(0, kMagicBytes, kMagic) == 0;
}

std::string acceptor_proof(const std::string& key, const std::string& hello, const std::string& before) {
    return hmac_sha256(key, "taskd rail acceptor" + hello + before);
}

}  // namespace

std::string make_hello(const Hello& hello, const std::string& random) {
    return std::string(kMagic, kMagicBytes) + hello.from + hello.to + bytes_of(hello.epoch) +
           bytes_of(static_cast<uint64_t>(hello.rail)) + random;
}

bool read_hello(const std::string& bytes, const std::string& me, Hello* hello) {
    if (bytes.size() != kHelloBytes || !begins_well(bytes))
        return false;
    hello->from = bytes.substr(kMagicBytes, kProcessIdBytes);
    hello->to = bytes.substr(kMagicBytes + kProcessIdBytes, kProcessIdBytes);
    uint64_t rail = 0;
    const char* numbers = bytes.data() + kMagicBytes + 2 * kProcessIdBytes;
    std::memcpy(&hello->epoch, numbers, 8);
    std::memcpy(&rail, numbers + 8, 8);
    hello->rail = static_cast<uint32_t>(rail);
    return hello->to == me && hello->from < me && rail < kMostRails;
}

std::string make_challenge(const std::string& key, const std::string& hello, const std::string& me,
                           const std::string& random) {
    const std::string before = std::string(kMagic, kMagicBytes) + me + random;
    return before + acceptor_proof(key, hello, before);
}

bool check_challenge(const std::string& key, const std::string& hello, const std::string& challenge) {
    if (challenge.size() != kChallengeBytes || !begins_well(challenge))
        return false;
    if (challenge.compare(kMagicBytes, kProcessIdBytes, hello, kMagicBytes + kProcessIdBytes, kProcessIdBytes) != 0)
        return false;
    const size_t before = kChallengeBytes - kProofBytes;
    return same_bytes(acceptor_proof(key, hello, challenge.substr(0, before)), challenge.substr(before));
}

std::string make_proof(const std::string& key, const std::string& hello, const std::string& challenge) {
    return hmac_sha256(key, "taskd rail dialler" + hello + challenge);
}

bool check_proof(const std::string& key, const std::string& hello, const std::string& challenge,
                 const std::string& proof) {
    return same_bytes(make_proof(key, hello, challenge), proof);
}

std::string make_welcome(Answer answer) {
    return "TSRW" + bytes_of(static_cast<uint32_t>(answer));
}

bool read_welcome(const std::string& bytes, Answer* answer) {
    if (bytes.size() != kWelcomeBytes || bytes.compare(0, 4, "TSRW") != 0)
        return false;
    uint32_t number = 0;
    std::memcpy(&number, bytes.data() + 4, 4);
    if (number < static_cast<uint32_t>(Answer::kWelcome) || number > static_cast<uint32_t>(Answer::kUnknown))
        return false;
    *answer = static_cast<Answer>(number);
    return true;
}

}  // namespace taskd::rail
