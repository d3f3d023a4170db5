// The counters in a memory file; counters.hpp says what and why.
#include "rail/counters.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace taskd::rail {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;
#endif
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Renaming takes a microsecond; a reader that meets it twice tries again at its next check.
constexpr int kReaderTries = 16;

template <class Value, class Given>
void put(std::atomic<Value>& field, Given value) noexcept {
    field.store(static_cast<Value>(value), std::memory_order_release);
}

template <class Value>
Value get(const std::atomic<Value>& field) noexcept {
    return field.load(std::memory_order_acquire);
}

template <size_t kWords>
void put_text(std::atomic<uint64_t> (&words)[kWords], const std::string& text) noexcept {
    char bytes[kWords * 8] = {};
    std::memcpy(bytes, text.data(), std::min(text.size(), sizeof bytes));
    for (size_t index = 0; index < kWords; ++index) {
        uint64_t word = 0;
        std::memcpy(&word, bytes + 8 * index, 8);
        put(words[index], word);
    }
}

template <size_t kWords>
std::string get_text(const std::atomic<uint64_t> (&words)[kWords]) {
    char bytes[kWords * 8];
    for (size_t index = 0; index < kWords; ++index) {
        const uint64_t word = get(words[index]);
        std::memcpy(bytes + 8 * index, &word, 8);
    }
    return std::string(bytes, strnlen(bytes, sizeof bytes));
}

size_t file_bytes(uint32_t capacity) {
    return sizeof(CounterHeader) + (size_t{capacity} + 1) * sizeof(CounterRecord);
}

bool is_connected(RailState state) noexcept {
    return state == RailState::kUp || state == RailState::kSuspect;
}

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

std::invalid_argument refusal(const std::string& reason) {
    return std::invalid_argument("This descriptor is no file of rail counters: " + reason + ".");
}

int create_memory_file() {
    constexpr const char* kName = "taskd-rail-counters";
    // Systems that forbid executable memory files need this flag; kernels before 6.3 do not know it.
    int fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

}  // namespace

void set_state(CounterRecord& record, RailState state, int64_t now_ns) noexcept {
    const auto was = static_cast<RailState>(get(record.state));
    if (was == state)
        return;
    if (state == RailState::kDown)
        put(record.downs, get(record.downs) + 1);
    if (state == RailState::kUp)
        put(record.was_up, 1);
    // A rail that is silent for a moment still has the same connection.
    if (!is_connected(was) || !is_connected(state))
        prove_anew(record);
    put(record.since_ns, now_ns);
    put(record.state, state);
}

void prove_anew(CounterRecord& record) noexcept {
    put(record.bytes_before, get(record.bytes_out) + get(record.bytes_in));
    put(record.proofs, get(record.proofs) + 1);
}

bool is_proved(const CounterRecord& record) noexcept {
    return get(record.bytes_out) + get(record.bytes_in) > get(record.bytes_before);
}

void set_error(CounterRecord& record, int error, int64_t now_ns) noexcept {
    put(record.last_error_ns, now_ns);
    put(record.last_error, error);
}

Counters::Counters(uint32_t capacity) : capacity_(capacity), owner_(getpid()), bytes_(file_bytes(capacity)) {
    fd_ = create_memory_file();
    if (fd_ < 0)
        fail("cannot create the memory file of the rail counters");
    void* address = MAP_FAILED;
    if (ftruncate(fd_, static_cast<off_t>(bytes_)) == 0 && fcntl(fd_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0)
        address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (address == MAP_FAILED) {
        // This happens under a limit on file size, for example. Rails that nobody can watch are better than none.
        ::close(std::exchange(fd_, -1));
        address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED)
            fail("cannot map memory for the rail counters");
    }
    header_ = static_cast<CounterHeader*>(address);
    records_ = reinterpret_cast<CounterRecord*>(header_ + 1);
    unseen_ = records_ + capacity;
    put(header_->version, kCountersVersion);
    put(header_->record_bytes, sizeof(CounterRecord));
    put(header_->capacity, capacity);
    put(header_->pid, owner_);
    put(header_->magic, kCountersMagic);
}

Counters::~Counters() {
    munmap(header_, bytes_);
    if (fd_ >= 0)
        ::close(fd_);
}

CounterRecord* Counters::find(const std::string& rail, int32_t peer, const std::string& node) const {
    const uint32_t end = get(header_->end);
    for (uint32_t index = 0; index < end; ++index) {
        CounterRecord& record = records_[index];
        if (get(record.peer) == peer && get_text(record.rail) == rail && get_text(record.node) == node)
            return &record;
    }
    if (end < capacity_)
        return &records_[end];
    CounterRecord* oldest = nullptr;
    for (uint32_t index = 0; index < end; ++index) {
        CounterRecord& record = records_[index];
        if (get(record.used) == 0 && (oldest == nullptr || get(record.since_ns) < get(oldest->since_ns)))
            oldest = &record;
    }
    return oldest;
}

CounterRecord& Counters::open(const std::string& rail, int32_t peer, const std::string& node, int64_t epoch,
                              int64_t now_ns, bool expected) {
    const std::string rail_name = rail.substr(0, kRailNameBytes);
    const std::string node_name = node.substr(0, kNodeNameBytes);
    CounterRecord* const found = find(rail_name, peer, node_name);
    if (found == nullptr) {
        put(header_->unrecorded, get(header_->unrecorded) + 1);
        return *unseen_;
    }
    CounterRecord& record = *found;
    const bool is_fresh = found == records_ + get(header_->end);
    const bool is_same = !is_fresh && get(record.peer) == peer && get_text(record.rail) == rail_name &&
                         get_text(record.node) == node_name;
    if (!is_same) {
        put(record.turn, get(record.turn) + 1);
        for (auto* counter : {&record.rate, &record.bytes_out, &record.bytes_in, &record.frames_out, &record.frames_in,
                              &record.retransmitted, &record.hedged, &record.duplicates, &record.garbage})
            put(*counter, 0);
        put(record.round_trip_ns, 0);
        put(record.last_error, 0);
        put(record.last_error_ns, 0);
        put(record.downs, 0);
        put(record.was_up, 0);
        put(record.peer, peer);
        put_text(record.rail, rail_name);
        put_text(record.node, node_name);
    }
    put(record.epoch, epoch);
    put(record.expected, expected ? 1 : 0);
    prove_anew(record);
    put(record.state, RailState::kProbing);
    put(record.since_ns, now_ns);
    put(record.used, 1);
    if (!is_same)
        put(record.turn, get(record.turn) + 1);
    if (is_fresh)
        put(header_->end, get(header_->end) + 1);
    return record;
}

void Counters::close(CounterRecord& record, int64_t epoch) noexcept {
    if (getpid() == owner_ && get(record.epoch) == epoch)
        put(record.used, 0);
}

CountersReader::CountersReader(int fd) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    if (fd_ < 0 && errno == EBADF)
        throw refusal("number " + std::to_string(fd) + " is not open");
    if (fd_ < 0)
        fail("cannot duplicate the descriptor of a file of rail counters");
    try {
        map();
    } catch (...) {
        if (header_ != nullptr)
            munmap(const_cast<CounterHeader*>(header_), bytes_);
        ::close(fd_);
        throw;
    }
}

void CountersReader::map() {
    const int seals = fcntl(fd_, F_GET_SEALS);
    if (seals < 0)
        throw refusal("it is no memory file");
    if ((seals & kSizeSeals) != kSizeSeals)
        throw refusal("its size is not sealed, so it could be cut off under a reader");
    struct stat status{};
    if (fstat(fd_, &status) != 0)
        fail("cannot look at a file of rail counters");
    const size_t bytes = static_cast<size_t>(status.st_size);
    if (bytes < file_bytes(0) || bytes > file_bytes(kCounterRecords) ||
        (bytes - sizeof(CounterHeader)) % sizeof(CounterRecord) != 0)
        throw refusal("it has " + std::to_string(bytes) + " bytes, which is no number of records");
    void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0);
    if (address == MAP_FAILED)
        fail("cannot map a file of rail counters");
    header_ = static_cast<const CounterHeader*>(address);
    bytes_ = bytes;
    records_ = reinterpret_cast<const CounterRecord*>(header_ + 1);
    // The capacity comes from the size and not from what the file says about itself: the file may say anything, also
    // later.
    capacity_ = static_cast<uint32_t>((bytes - sizeof(CounterHeader)) / sizeof(CounterRecord) - 1);
    if (get(header_->magic) != kCountersMagic)
        throw refusal("its first bytes are not those of one");
    if (const uint32_t version = get(header_->version); version != kCountersVersion) {
        throw refusal("it has version " + std::to_string(version) + " and this build reads version " +
                      std::to_string(kCountersVersion) + ", so install the same taskd everywhere");
    }
}

CountersReader::~CountersReader() {
    munmap(const_cast<CounterHeader*>(header_), bytes_);
    ::close(fd_);
}

namespace {

// False if the record was being renamed all the time: its writer died in the middle of that, or is doing it right now.
bool read_record(const CounterRecord& record, CounterView& view) {
    for (int turn = 0; turn < kReaderTries; ++turn) {
        view.turn = get(record.turn);
        if ((view.turn & 1) != 0)
            continue;
        view.used = get(record.used) != 0;
        view.expected = get(record.expected) != 0;
        view.was_up = get(record.was_up) != 0;
        view.rail = get_text(record.rail);
        view.node = get_text(record.node);
        view.peer = get(record.peer);
        view.state = static_cast<RailState>(std::min(get(record.state), static_cast<uint32_t>(RailState::kProbing)));
        view.epoch = get(record.epoch);
        view.since_ns = get(record.since_ns);
        view.last_error_ns = get(record.last_error_ns);
        view.last_error = get(record.last_error);
        view.downs = get(record.downs);
        view.round_trip_ns = get(record.round_trip_ns);
        view.rate = get(record.rate);
        view.bytes_out = get(record.bytes_out);
        view.bytes_in = get(record.bytes_in);
        view.bytes_before = get(record.bytes_before);
        view.proofs = get(record.proofs);
        view.frames_out = get(record.frames_out);
        view.frames_in = get(record.frames_in);
        view.retransmitted = get(record.retransmitted);
        view.hedged = get(record.hedged);
        view.duplicates = get(record.duplicates);
        view.garbage = get(record.garbage);
        if (record.turn.load(std::memory_order_relaxed) == view.turn)
            return true;
    }
    return false;
}

}  // namespace

std::vector<CounterView> CountersReader::read() const {
    const uint32_t end = std::min(get(header_->end), capacity_);
    std::vector<CounterView> views;
    views.reserve(end);
    for (uint32_t index = 0; index < end; ++index) {
        CounterView view;
        if (!read_record(records_[index], view))
            continue;
        view.slot = index;
        views.push_back(std::move(view));
    }
    return views;
}

CounterTotals CountersReader::totals() const {
    return {get(header_->pid), get(header_->unrecorded), get(header_->strangers), get(header_->garbage),
            get(header_->stale)};
}

}  // namespace taskd::rail
