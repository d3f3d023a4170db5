// What the fuzzers share: numbers from a seed, and sockets made of memory.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../parts/check.hpp"
#include "rail/io/frame.hpp"
#include "rail/io/socket.hpp"

namespace taskd::rail::test {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        state_ += 0x9e3779b97f4a7c15;
        uint64_t word = state_;
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
        word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
        return word ^ (word >> 31);
    }

    // Returns a number from 0 to below the bound.
    uint64_t below(uint64_t bound) { return next() % bound; }

    bool once_in(uint64_t times) { return below(times) == 0; }

    // Returns a small number, a number near a power of two, or any number.
    uint64_t odd_number() {
        switch (below(4)) {
            case 0:
                return below(8);
            case 1:
                return (uint64_t{1} << below(64)) - 1 + below(3);
            case 2:
                return ~below(8);
            default:
                return next();
        }
    }

    std::string bytes(size_t count) {
        std::string text(count, '\0');
        for (char& byte : text)
            byte = static_cast<char>(next());
        return text;
    }

  private:
    uint64_t state_;
};

// Changes a few bytes, or cuts, or doubles a piece.
inline void mutate(Random& random, std::string& bytes) {
    for (uint64_t times = 1 + random.below(3); times > 0 && !bytes.empty(); --times) {
        const size_t at = random.below(bytes.size());
        switch (random.below(5)) {
            case 0:
                bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
                break;
            case 1:
                bytes[at] = static_cast<char>(random.odd_number());
                break;
            case 2:
                bytes.resize(at);
                break;
            case 3:
                bytes.insert(at, bytes.substr(at, random.below(64)));
                break;
            default:
                bytes.erase(at, random.below(16));
        }
    }
}

// Sockets whose other end is the fuzzer. They deliver its bytes in pieces of any size, and keep what is written.
class MemorySockets : public SocketLayer {
  public:
    struct End {
        std::string to_read;
        size_t read = 0;  // how much of it has been read
        std::string written;
        bool is_over = false;  // nothing follows these bytes
        bool keeps = true;     // whether to keep what is written
    };

    explicit MemorySockets(Random& random) : random_(random) {}

    int open() {
        ends_[++last_];
        return last_;
    }

    End& end(int fd) { return ends_.at(fd); }

    size_t open_count() const { return ends_.size(); }

    int accept(int) override { return -EAGAIN; }

    ssize_t read(int fd, const iovec* pieces, int count) override {
        End& end = ends_.at(fd);
        if (random_.once_in(16))
            return random_.once_in(2) ? -EINTR : -EAGAIN;
        const size_t left = end.to_read.size() - end.read;
        if (left == 0)
            return end.is_over ? 0 : -EAGAIN;
        const size_t most = std::min(left, random_.once_in(4) ? 1 + random_.below(200) : 1 + random_.below(1 << 18));
        size_t done = 0;
        for (int index = 0; index < count; ++index) {
            const size_t some = std::min(pieces[index].iov_len, most - done);
            std::memcpy(pieces[index].iov_base, end.to_read.data() + end.read + done, some);
            done += some;
        }
        end.read += done;
        if (end.read == end.to_read.size() || end.read > (4 << 20)) {
            end.to_read.erase(0, end.read);
            end.read = 0;
        }
        return static_cast<ssize_t>(done);
    }

    ssize_t write(int fd, const iovec* pieces, int count) override {
        End& end = ends_.at(fd);
        if (random_.once_in(8))
            return random_.once_in(16) ? -ECONNRESET : -EAGAIN;
        size_t most = random_.once_in(2) ? 1 + random_.below(1000) : SIZE_MAX;
        size_t done = 0;
        for (int index = 0; index < count && most > 0; ++index) {
            const size_t some = std::min(pieces[index].iov_len, most);
            end.written.append(static_cast<const char*>(pieces[index].iov_base), some);
            done += some;
            most -= some;
        }
        if (!end.keeps)
            end.written.clear();
        return static_cast<ssize_t>(done);
    }

    long queued(int) override { return static_cast<long>(random_.below(100000)); }

    bool is_awaited(int) override { return random_.below(2) == 0; }

    void close(int fd) override { CHECK(ends_.erase(fd) == 1); }

  private:
    Random& random_;
    std::map<int, End> ends_;
    int last_ = 100000;  // far from the numbers that the system gives
};

// Each function runs one round from one seed. Any fault ends the process.
void fuzz_link(Random& random);
void fuzz_handshake(Random& random);
void fuzz_texts(Random& random);
void fuzz_session(Random& random);

}  // namespace taskd::rail::test
