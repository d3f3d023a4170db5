// The counters of the transport, per rail and peer, in memory that the node's agent maps and reads.
//
// Why: an operator asks which rail carried what, and the manager must see bytes flow before it believes that a rail is
// back. A counter in shared memory costs the transport a store and costs the reader no system call. Neither waits for
// the other, and the figures of a dead process can still be read.
//
// How it stays consistent: everything is a lock-free atomic with one writer at a time (the thread that holds the
// engine's lock). Counters are stored alone and only grow. A record's names (which rail, which peer) change only when
// the record is taken for another pair. `turn` is odd meanwhile, as in csrc/native/page.hpp, and tells a reader whose
// figures it has. A pair keeps its record from epoch to epoch, so its counters go on.
//
// The file is sparse: a record costs memory only when it is used. Its size is sealed, so that nobody can shrink it
// while a reader has it mapped. A reader trusts nothing: any value may come out, and texts are bounded.
//
// Does not: sum, compare or judge (the agent and the core do).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace taskd::rail {

constexpr uint64_t kCountersMagic = 0x53544e434b535454;
constexpr uint32_t kCountersVersion = 2;
constexpr uint32_t kCounterRecords = 16384;  // 1,024 peers over 16 rails; 4 MiB if all were used
constexpr size_t kRailNameBytes = 32;
constexpr size_t kNodeNameBytes = 64;

enum class RailState : uint32_t { kUp = 0, kSuspect = 1, kDown = 2, kProbing = 3 };

// One rail to one peer. Times are CLOCK_MONOTONIC nanoseconds.
struct alignas(64) CounterRecord {
    std::atomic<uint32_t> turn;   // odd: being renamed
    std::atomic<uint32_t> used;   // 1: a session uses it; 0: its figures stay, but do not grow
    std::atomic<int32_t> peer;    // rank, or -1
    std::atomic<uint32_t> state;  // RailState
    std::atomic<int64_t> epoch;
    std::atomic<int64_t> since_ns;  // since when the state holds
    std::atomic<int64_t> last_error_ns;
    std::atomic<int32_t> last_error;  // an errno; 0: none yet
    std::atomic<uint32_t> downs;      // how often it went down
    std::atomic<int64_t> round_trip_ns;
    std::atomic<uint64_t> rate;       // bytes per second that it delivers
    std::atomic<uint64_t> bytes_out;  // of messages, without headers and probes, so what moves here is work
    std::atomic<uint64_t> bytes_in;
    std::atomic<uint64_t> frames_out;
    std::atomic<uint64_t> frames_in;
    std::atomic<uint64_t> retransmitted;  // frames that went out again because this rail failed
    std::atomic<uint64_t> hedged;         // frames of this rail that also went out on another, because it was silent
    std::atomic<uint64_t> duplicates;     // frames that came although they had come before
    std::atomic<uint64_t> garbage;        // frames that broke the rules; each cost the connection
    std::atomic<uint64_t> rail[kRailNameBytes / 8];  // text, padded with zeros
    std::atomic<uint64_t> node[kNodeNameBytes / 8];
    std::atomic<uint32_t> expected;      // 0: nobody promised that the rail reaches this peer
    std::atomic<uint32_t> was_up;        // 1: the rail has been up since the record was opened for the pair
    std::atomic<uint64_t> bytes_before;  // out and in, at the last connection or order; if more now, it carries
    std::atomic<uint32_t> proofs;        // how often that was; if it changes, others' traffic counts anew
};

struct alignas(64) CounterHeader {
    std::atomic<uint64_t> magic;
    std::atomic<uint32_t> version;
    std::atomic<uint32_t> record_bytes;
    std::atomic<uint32_t> capacity;
    std::atomic<uint32_t> end;  // records from here on were never used
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> unrecorded;  // pairs for which no record was left
    std::atomic<uint64_t> strangers;   // connections that did not prove the key
    std::atomic<uint64_t> garbage;     // connections whose first bytes were not ours
    std::atomic<uint64_t> stale;       // connections for an epoch that is over
};

static_assert(sizeof(CounterRecord) == 256 && sizeof(CounterHeader) == 64);
static_assert(offsetof(CounterRecord, round_trip_ns) == 48 && offsetof(CounterRecord, rail) == 128);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "an atomic with a hidden lock means nothing to another process");

// The writer's side; with the engine's lock held.
inline void add(std::atomic<uint64_t>& counter, uint64_t more) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_release);
}

// Sets the state of the rail to this peer. The time changes, and a DOWN is counted, only if the state is new.
void set_state(CounterRecord& record, RailState state, int64_t now_ns) noexcept;
void set_error(CounterRecord& record, int error, int64_t now_ns) noexcept;
// An order has put the rail out of use or back: the rail must show again that it carries, although its state is the
// same.
void prove_anew(CounterRecord& record) noexcept;
// Whether the rail has carried something since then.
bool is_proved(const CounterRecord& record) noexcept;

// The file as its owner has it.
class Counters {
  public:
    // Throws std::system_error.
    explicit Counters(uint32_t capacity = kCounterRecords);
    ~Counters();
    Counters(const Counters&) = delete;
    Counters& operator=(const Counters&) = delete;

    // -1: the file could not be made as large as needed, and no other process will see these figures.
    int fd() const noexcept { return fd_; }

    CounterHeader& header() const noexcept { return *header_; }

    // Returns the record of this pair: the one it had before, or a new one, or the record of a pair that nobody uses
    // any more. If all are in use, it returns a record that no reader sees: it counts in vain, and `unrecorded` says
    // so. Texts are cut to their limits. The state is PROBING until set_state() sets another, and the record stays in
    // place until this object ends. Not `expected`: the rail was found and not named, and is no rail to this peer until
    // it has been up.
    CounterRecord& open(const std::string& rail, int32_t peer, const std::string& node, int64_t epoch, int64_t now_ns,
                        bool expected = true);
    // The session of this epoch has ended; the figures stay readable until the record is needed. If a session of
    // another epoch has opened the record meanwhile, nothing happens.
    void close(CounterRecord& record, int64_t epoch) noexcept;

  private:
    CounterRecord* find(const std::string& rail, int32_t peer, const std::string& node) const;

    const uint32_t capacity_;
    const int owner_;  // process: in a forked child nothing here touches the parent's figures
    int fd_ = -1;
    size_t bytes_ = 0;
    CounterHeader* header_ = nullptr;
    CounterRecord* records_ = nullptr;
    CounterRecord* unseen_ = nullptr;
};

// What a reader gets from one record.
struct CounterView {
    uint32_t slot = 0;
    uint32_t turn = 0;  // another number at the same slot: other names, counters from 0
    bool used = false;
    bool expected = true;
    bool was_up = false;
    std::string rail;
    std::string node;
    int32_t peer = -1;
    RailState state = RailState::kUp;
    int64_t epoch = 0;
    int64_t since_ns = 0;
    int64_t last_error_ns = 0;
    int32_t last_error = 0;
    uint32_t downs = 0;
    int64_t round_trip_ns = 0;
    uint64_t rate = 0;
    uint64_t bytes_out = 0;
    uint64_t bytes_in = 0;
    uint64_t bytes_before = 0;
    uint32_t proofs = 0;
    uint64_t frames_out = 0;
    uint64_t frames_in = 0;
    uint64_t retransmitted = 0;
    uint64_t hedged = 0;
    uint64_t duplicates = 0;
    uint64_t garbage = 0;
};

struct CounterTotals {
    int32_t pid = 0;
    uint32_t unrecorded = 0;
    uint64_t strangers = 0;
    uint64_t garbage = 0;
    uint64_t stale = 0;
};

// The reader of another process's file.
class CountersReader {
  public:
    // Takes any descriptor of the file, and duplicates it. Throws std::invalid_argument with one sentence if this is
    // not a file of counters that can be read safely.
    explicit CountersReader(int fd);
    ~CountersReader();
    CountersReader(const CountersReader&) = delete;
    CountersReader& operator=(const CountersReader&) = delete;

    // Returns every record that was ever used, except one that is being renamed at this moment.
    std::vector<CounterView> read() const;
    CounterTotals totals() const;

    int fd() const noexcept { return fd_; }

  private:
    void map();

    int fd_ = -1;
    size_t bytes_ = 0;
    uint32_t capacity_ = 0;
    const CounterHeader* header_ = nullptr;
    const CounterRecord* records_ = nullptr;
};

}  // namespace taskd::rail
