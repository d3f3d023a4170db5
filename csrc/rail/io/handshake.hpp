// The handshake on a new connection: two processes prove to each other that they know the job's key.
//
// Why: otherwise anybody who can reach the port could write into the memory of a training job. Both sides send random
// bytes, and answer with a digest of the key and of everything said so far. The two directions use different labels, so
// that no answer can be reflected or used again. Nothing is interpreted before it is proved, except the fields that
// name the wanted session.
//
//     dialler                       acceptor
//     Hello (who, epoch, rail)  ->
//                               <-  Challenge (random, proof)
//     Proof                     ->
//                               <-  Welcome (yes, or why not); may be late: the acceptor has not joined the epoch yet
//
// Pure: bytes in, bytes out. Does not: encrypt what follows, or wait.
#pragma once

#include <cstdint>
#include <string>

namespace taskd::rail {

constexpr size_t kHelloBytes = 88;
constexpr size_t kChallengeBytes = 88;
constexpr size_t kProofBytes = 32;
constexpr size_t kWelcomeBytes = 8;

enum class Answer : uint32_t { kWelcome = 1, kStale, kUnknown };

struct Hello {
    std::string from;  // process ids
    std::string to;
    int64_t epoch = 0;
    uint32_t rail = 0;  // the dialler's rail
};

std::string make_hello(const Hello& hello, const std::string& random);
// False if these bytes are not from this protocol, or are for another process.
bool read_hello(const std::string& bytes, const std::string& me, Hello* hello);

std::string make_challenge(const std::string& key, const std::string& hello, const std::string& me,
                           const std::string& random);
// Whether the acceptor knows the key.
bool check_challenge(const std::string& key, const std::string& hello, const std::string& challenge);

std::string make_proof(const std::string& key, const std::string& hello, const std::string& challenge);
bool check_proof(const std::string& key, const std::string& hello, const std::string& challenge,
                 const std::string& proof);

std::string make_welcome(Answer answer);
// False if these bytes are not an answer.
bool read_welcome(const std::string& bytes, Answer* answer);

}  // namespace taskd::rail
