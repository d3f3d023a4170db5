// See record.hpp.
#include "c10d/record.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "c10d/forks.hpp"

namespace taskd::comm {

namespace {

constexpr size_t kHeadBytes = 16;
constexpr size_t kStateOffset = 12;
constexpr size_t kFrameBytes = 8;
constexpr size_t kAlignment = 8;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the record is written as this machine has its numbers");

template <class Number>
void put(std::string& out, Number value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
    put<uint32_t>(out, static_cast<uint32_t>(text.size()));
    out += text;
}

// Reads what put() wrote. Every length is checked against the bytes that are there.
class Reader {
  public:
    explicit Reader(const std::string& bytes) : bytes_(bytes) {}

    template <class Number>
    Number number() {
        Number value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }

    std::string text() {
        const auto length = number<uint32_t>();
        return std::string(take(length), length);
    }

    bool at_end() const { return place_ == bytes_.size(); }

  private:
    const char* take(size_t count) {
        if (count > bytes_.size() - place_)
            throw std::invalid_argument("an entry of the record is too short");
        place_ += count;
        return bytes_.data() + place_ - count;
    }

    const std::string& bytes_;
    size_t place_ = 0;
};

std::array<uint32_t, 256> make_crc_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < table.size(); ++byte) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit)
            value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
        table[byte] = value;
    }
    return table;
}

bool write_all(int fd, const std::string& bytes, uint64_t offset) noexcept {
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t count = ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        done += static_cast<size_t>(count);
    }
    return true;
}

}  // namespace

uint32_t crc32(const std::string& bytes) {
    static const std::array<uint32_t, 256> table = make_crc_table();
    uint32_t value = 0xFFFFFFFFu;
    for (const char byte : bytes)
        value = (value >> 8) ^ table[(value ^ static_cast<unsigned char>(byte)) & 0xFFu];
    return value ^ 0xFFFFFFFFu;
}

std::string RecordedTensor::form() const {
    std::string text = dtype + "[";
    for (size_t i = 0; i < shape.size(); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

std::string RecordEntry::key() const {
    const bool message = kind == "send" || kind == "recv" || kind == "recvanysource";
    return message ? group + "/" + kind + "/" + std::to_string(peer) + "/" + std::to_string(tag) : group;
}

std::string RecordEntry::describe() const {
    std::string text = kind + " in group " + group + " of (";
    for (size_t i = 0; i < tensors.size(); ++i)
        text += (i == 0 ? "" : ", ") + tensors[i].form();
    return text + ")";
}

std::string encode(const RecordEntry& entry) {
    std::string body;
    put_text(body, entry.kind);
    put_text(body, entry.group);
    put(body, entry.peer);
    put(body, entry.tag);
    put(body, entry.source);
    put(body, entry.turn);
    put<uint32_t>(body, static_cast<uint32_t>(entry.tensors.size()));
    for (const RecordedTensor& tensor : entry.tensors) {
        put_text(body, tensor.dtype);
        put<uint32_t>(body, static_cast<uint32_t>(tensor.shape.size()));
        for (const int64_t size : tensor.shape)
            put(body, size);
        put<uint32_t>(body, tensor.has_bytes ? 1 : 0);
        put_text(body, tensor.bytes);
    }
    return body;
}

RecordEntry decode(const std::string& body) {
    Reader reader(body);
    RecordEntry entry;
    entry.kind = reader.text();
    entry.group = reader.text();
    entry.peer = reader.number<int32_t>();
    entry.tag = reader.number<int32_t>();
    entry.source = reader.number<int32_t>();
    entry.turn = reader.number<uint64_t>();
    const auto count = reader.number<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) {
        RecordedTensor tensor;
        tensor.dtype = reader.text();
        const auto dimensions = reader.number<uint32_t>();
        for (uint32_t j = 0; j < dimensions; ++j)
            tensor.shape.push_back(reader.number<int64_t>());
        tensor.has_bytes = reader.number<uint32_t>() != 0;
        tensor.bytes = reader.text();
        entry.tensors.push_back(std::move(tensor));
    }
    if (!reader.at_end())
        throw std::invalid_argument("an entry of the record is too long");
    return entry;
}

Recorder& Recorder::instance() {
    static Recorder& recorder = one_per_process<Recorder>();
    return recorder;
}

[[maybe_unused]] static const Recorder& recorder_made_at_load = Recorder::instance();

void Recorder::start(int fd) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        throw std::system_error(errno, std::generic_category(), "the record's file descriptor cannot be used");
    std::string head(kRecordMagic, sizeof kRecordMagic);
    put(head, kRecordVersion);
    put(head, static_cast<uint32_t>(RecordState::kOpen));
    const std::lock_guard<std::mutex> held(mutex_);
    close_file();
    if (::ftruncate(own, 0) != 0 || !write_all(own, head, 0)) {
        const int error = errno;
        ::close(own);
        throw std::system_error(error, std::generic_category(), "the record cannot be written");
    }
    fd_ = own;
    offset_ = kHeadBytes;
    bytes_ = entries_ = 0;
}

void Recorder::stop() noexcept {
    const std::lock_guard<std::mutex> held(mutex_);
    if (fd_ < 0)
        return;
    write_state(RecordState::kClosed);
    close_file();
}

void Recorder::give_up() noexcept {
    const std::lock_guard<std::mutex> held(mutex_);
    give_up_locked();
}

bool Recorder::active() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return fd_ >= 0;
}

bool Recorder::wants(uint64_t bytes) const {
    const std::lock_guard<std::mutex> held(mutex_);
    return bytes <= kMostBytesPerTensor && bytes_ + bytes <= kMostBytesRecorded;
}

void Recorder::append(const RecordEntry& entry) noexcept {
    try {
        const std::string body = encode(entry);
        std::string frame;
        put<uint32_t>(frame, static_cast<uint32_t>(body.size()));
        put(frame, crc32(body));
        frame += body;
        frame.append((kAlignment - frame.size() % kAlignment) % kAlignment, '\0');
        const std::lock_guard<std::mutex> held(mutex_);
        if (fd_ < 0)
            return;
        if (++entries_ > kMostEntries) {
            give_up_locked();
            return;
        }
        if (!write_all(fd_, frame, offset_)) {
            write_state(RecordState::kBroken);
            close_file();
            return;
        }
        offset_ += frame.size();
        for (const RecordedTensor& tensor : entry.tensors)
            bytes_ += tensor.bytes.size();
    } catch (const std::bad_alloc&) {
        const std::lock_guard<std::mutex> held(mutex_);
        write_state(RecordState::kBroken);
        close_file();
    }
}

void Recorder::write_state(RecordState state) noexcept {
    const auto value = static_cast<uint32_t>(state);
    if (fd_ < 0)
        return;
    // If even this fails, the missing entries are noticed when they are wanted.
    [[maybe_unused]] const ssize_t count = ::pwrite(fd_, &value, sizeof value, kStateOffset);
}

void Recorder::give_up_locked() noexcept {
    write_state(RecordState::kGivenUp);
    if (fd_ >= 0) {
        // If this fails, what stays there only costs memory.
        [[maybe_unused]] const int failed = ::ftruncate(fd_, kHeadBytes);
    }
    close_file();
}

void Recorder::close_file() noexcept {
    if (fd_ >= 0)
        ::close(fd_);
    fd_ = -1;
}

Replay& Replay::instance() {
    static Replay& replay = one_per_process<Replay>();
    return replay;
}

[[maybe_unused]] static const Replay& replay_made_at_load = Replay::instance();

void Replay::load(const std::string& record) {
    if (record.size() < kHeadBytes || std::memcmp(record.data(), kRecordMagic, sizeof kRecordMagic) != 0) {
        throw std::invalid_argument("these bytes are not a record of a set-up; hand over the file that was recorded.");
    }
    const std::string head = record.substr(0, kHeadBytes);
    Reader reader(head);
    reader.number<uint64_t>();
    if (reader.number<uint32_t>() != kRecordVersion) {
        throw std::invalid_argument("the record has another version; use one release of taskd on all nodes.");
    }
    const auto state = static_cast<RecordState>(reader.number<uint32_t>());
    if (state == RecordState::kBroken)
        throw std::invalid_argument("the record could not be written to its end (memory ran out?); restart all ranks.");
    if (state == RecordState::kGivenUp)
        throw std::invalid_argument(
            "the set-up communicated so often, or trained so long before taskd.session(), that "
            "its record was given up; restart all ranks.");
    std::map<std::string, std::deque<RecordEntry>> entries;
    for (size_t place = kHeadBytes; record.size() - place >= kFrameBytes;) {
        uint32_t length = 0;
        uint32_t sum = 0;
        std::memcpy(&length, record.data() + place, sizeof length);
        std::memcpy(&sum, record.data() + place + sizeof length, sizeof sum);
        if (length == 0 || length > record.size() - place - kFrameBytes)
            break;
        const std::string body = record.substr(place + kFrameBytes, length);
        if (crc32(body) != sum)
            break;
        RecordEntry entry = decode(body);
        const std::string key = entry.key();
        entries[key].push_back(std::move(entry));
        const size_t used = kFrameBytes + length;
        place += used + (kAlignment - used % kAlignment) % kAlignment;
        if (place > record.size())
            break;
    }
    for (auto& [key, found] : entries) {
        std::stable_sort(found.begin(), found.end(),
                         [](const RecordEntry& one, const RecordEntry& other) { return one.turn < other.turn; });
    }
    const std::lock_guard<std::mutex> held(mutex_);
    entries_ = std::move(entries);
}

bool Replay::take(const std::string& key, RecordEntry& entry) {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.empty())
        return false;
    entry = std::move(found->second.front());
    found->second.pop_front();
    return true;
}

uint64_t Replay::left() const {
    const std::lock_guard<std::mutex> held(mutex_);
    uint64_t count = 0;
    for (const auto& [key, entries] : entries_)
        count += entries.size();
    return count;
}

std::string read_file(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        throw std::system_error(errno, std::generic_category(), "the record cannot be read");
    std::string bytes(static_cast<size_t>(info.st_size), '\0');
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t count = ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            throw std::system_error(errno, std::generic_category(), "the record cannot be read");
        if (count == 0)
            break;
        done += static_cast<size_t>(count);
    }
    bytes.resize(done);
    return bytes;
}

}  // namespace taskd::comm
