// Connections that are not links yet: those that were dialled and those that came in, until both sides have proved that
// they know the key.
//
// Why apart from sessions: a stranger must never reach a session. Connections that have not proved the key are limited
// in number, bytes and time. If more come than are expected, the oldest one is closed. So a crowd of strangers takes no
// descriptors from the training process and keeps nobody out for long. A proved dial for an epoch that this process has
// not joined yet waits here.
//
// All calls are made with the engine's lock held. Does not: wait, or decide when to dial.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rail/io/handshake.hpp"
#include "rail/io/socket.hpp"

namespace taskd::rail {

class DoorKeeper {
  public:
    enum class Stranger { kGarbage, kNoKey, kStale };

    virtual ~DoorKeeper() = default;
    virtual int64_t now_ns() const = 0;
    virtual void wake_by(int64_t time_ns) = 0;
    // Watches a descriptor and calls Door::ready() with its number; `unwatch` comes before it is closed or handed over.
    virtual void watch(int fd, uint64_t greeting) = 0;
    virtual void unwatch(int fd, uint64_t greeting) = 0;
    // Whether a proved dial is welcome; nullptr: not yet.
    virtual const Answer* judge(const Hello& hello) = 0;
    // How many dials of this job may come at once.
    virtual size_t expected() const = 0;
    // From now on the keeper owns the descriptor.
    virtual void welcomed(const Hello& hello, int fd) = 0;
    virtual void dialled(const Hello& hello, int fd) = 0;
    virtual void dial_failed(const Hello& hello, int error, const std::string& trouble) = 0;
    virtual void count(Stranger stranger) = 0;
    // Call it within a catch block: it ends this epoch, or none (kNoEpoch), and keeps the error text for a message.
    virtual void blame(int64_t epoch) noexcept = 0;
};

constexpr int64_t kNoEpoch = INT64_MIN;

class Door {
  public:
    Door(DoorKeeper& keeper, SocketLayer& sockets, std::string key, std::string me);
    ~Door();

    void came(int fd);
    // What is thrown here is the caller's to handle; this is true for this function only.
    void dial(const Hello& hello, const SocketAddress& local, const SocketAddress& remote);
    void ready(uint64_t greeting);
    // Judges the waiting dials again.
    void judge_again();
    // Gives up all connections of this epoch and of earlier ones, in both directions.
    void drop(int64_t epoch);
    void on_time(int64_t now_ns);
    int64_t next_ns() const;

  private:
    enum class Stage { kConnecting, kChallenge, kWelcome, kHello, kProof, kHeld };

    struct Greeting {
        int fd = -1;
        Stage stage = Stage::kHello;
        Hello hello;
        std::string said;       // the hello as it was sent
        std::string challenge;  // likewise
        std::string in;
        int64_t until_ns = 0;
    };

    // An exception while one connection is handled costs that connection, and the epoch for which it has proved itself.
    template <class Work>
    void over(uint64_t number, const Work& work) noexcept;
    void go_on(uint64_t number);
    size_t wanted(const Greeting& greeting) const;
    bool take(uint64_t number, Greeting& greeting);
    bool advance(uint64_t number, Greeting& greeting);
    bool advance_dialled(uint64_t number, Greeting& greeting);
    bool answer_proved(uint64_t number, Greeting& greeting);
    bool say(Greeting& greeting, const std::string& text);
    void end(uint64_t number, int error, const std::string& trouble);
    int hand_over(uint64_t number);
    uint64_t open(Greeting greeting, int64_t within_ns);
    static bool is_stranger(const Greeting& greeting);
    void make_room();

    DoorKeeper& keeper_;
    SocketLayer& sockets_;
    const std::string key_;
    const std::string me_;
    std::map<uint64_t, Greeting> greetings_;
    uint64_t last_ = 0;
    size_t strangers_ = 0;  // connections that came in and have not proved the key
    size_t most_strangers_ = 0;
};

}  // namespace taskd::rail
