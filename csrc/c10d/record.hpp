// The record: the result of every operation of a set-up on this rank, for a newcomer to play back.
//
// Why: a process that replaces a dead one runs the user's set-up code, which communicates. The survivors have finished
// their set-up and wait for nobody's imports. The dead rank's own results are what its code would have seen. They are
// written, as they come, into a memory file. The agent holds its descriptor too, so they outlive the process.
//
// Layout, little endian: a head of 16 bytes (magic, version, state), then entries. An entry is the length and the
// CRC-32 (zlib's) of its body, then the body, filled up to 8 bytes. What follows the last whole entry is not an entry:
// the process died while it wrote. A record that has grown beyond any set-up is given up and emptied, because without a
// session's loop nothing else ends it.
//
// Does not: know torch (operation.cpp makes and reads entries), or decide when recording begins and ends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace taskd::comm {

constexpr char kRecordMagic[8] = {'T', 'S', 'K', 'D', 'R', 'E', 'C', '1'};
constexpr uint32_t kRecordVersion = 2;
constexpr uint64_t kMostBytesPerTensor = 1 << 20;
constexpr uint64_t kMostBytesRecorded = 64 << 20;
constexpr uint64_t kMostEntries = 1 << 16;

enum class RecordState : uint32_t { kOpen = 1, kClosed = 2, kBroken = 3, kGivenUp = 4 };

struct RecordedTensor {
    std::string dtype;
    std::vector<int64_t> shape;
    bool has_bytes = false;  // false: too large; its contents come with the state
    std::string bytes;

    bool same_form(const RecordedTensor& other) const { return dtype == other.dtype && shape == other.shape; }

    std::string form() const;
};

struct RecordEntry {
    std::string kind;
    std::string group;
    int32_t peer = -1;  // of a point-to-point operation
    int32_t tag = 0;
    int32_t source = -1;  // the rank that a message really came from
    uint64_t turn = 0;    // the order of the calls; operations may end in another order
    std::vector<RecordedTensor> tensors{};

    // Entries with the same key are played back in order. Messages have their own order for each peer and tag.
    std::string key() const;
    std::string describe() const;
};

// Appends entries to a file. Any thread may use it.
class Recorder {
  public:
    static Recorder& instance();

    // Begins a new record at the start of this file. The caller keeps the descriptor. Throws std::system_error.
    void start(int fd);
    void stop() noexcept;
    // Ends a record that is no longer of use.
    void give_up() noexcept;
    bool active() const;
    // Whether the bytes of a tensor of this size may still be recorded. Either all of them are, or none.
    bool wants(uint64_t bytes) const;
    // Appends an entry. If it cannot be written, the record is marked as broken, but the operation does not fail.
    void append(const RecordEntry& entry) noexcept;

  private:
    void write_state(RecordState state) noexcept;
    void give_up_locked() noexcept;
    void close_file() noexcept;

    mutable std::mutex mutex_;
    int fd_ = -1;
    uint64_t offset_ = 0;
    uint64_t bytes_ = 0;
    uint64_t entries_ = 0;
};

// Takes entries out of a record, for each key in the order of the calls. Any thread may use it.
class Replay {
  public:
    static Replay& instance();

    // Throws std::invalid_argument with a sentence if these bytes are not a record, or a broken one.
    void load(const std::string& record);
    // Returns false if no entry is left under this key.
    bool take(const std::string& key, RecordEntry& entry);
    uint64_t left() const;

  private:
    mutable std::mutex mutex_;
    std::map<std::string, std::deque<RecordEntry>> entries_;
};

// Returns the whole contents of a file. Throws std::system_error.
std::string read_file(int fd);

std::string encode(const RecordEntry& entry);
// Throws std::invalid_argument if the body is not an entry.
RecordEntry decode(const std::string& body);
uint32_t crc32(const std::string& bytes);

}  // namespace taskd::comm
