// Frames, the units that travel on a link: a fixed header and, for some frames, a payload.
//
// Why: a receiver must know where the bytes of a frame belong before it reads them, so that they are read into place.
// It must never believe a header that is damaged, of another epoch or out of bounds. Every header also says what its
// sender has received so far, so that traffic in both directions needs few frames for acknowledgement alone.
//
// The sender keeps a numbered frame until it is acknowledged; numbers count up from 1 over all links of a session. The
// payload of a large message (kHasMark) is read from memory that may be taken back while it is being written. So a word
// follows it that says whether all of it was real.
//
// Numbers use the byte order of the machine; a frame from a machine with the other byte order is refused by its magic.
//
// Does not: read or write sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rail/transport.hpp"

namespace taskd::rail {

enum class FrameType : uint8_t {
    kData = 1,  // bytes of a message
    kCredit,    // the receiver has named the memory for a message
    kOffer,     // a message waits for its receiver
    kDescribe,  // the form of an operation, for comparison
    kDiffers,   // the answer, if the receiver is in another operation
    kVoid,      // a number whose bytes are not needed any more
    kAck,       // what has been received: the payload has Ranges above the header's cumulative number
    kPing,      // the pong returns `offset`; `part`: whether the sender wants the link to be used
    kPong,      // the answer to a ping, on the same link
    kBye,       // the sender leaves the session for good; the payload says why, `offset` in which manner
    kLost       // the sender has lost connection `offset` of rail `part`; the other end may not know
};

struct FrameHeader {
    uint32_t magic;
    uint8_t version;
    FrameType type;
    uint16_t flags;
    uint32_t checksum;  // of the header, with this word as 0
    uint32_t length;    // of the payload
    int64_t epoch;
    uint64_t number;    // 0: not numbered
    uint64_t received;  // all numbers up to this one have arrived
    uint64_t freed;  // bytes of small messages that have left the receiver's pool, and by how much the pool has grown
    uint64_t group;
    uint64_t sequence;
    uint32_t part;
    uint32_t reserved;
    uint64_t offset;  // of a payload; a ping's value; kAsksAgain of an offer; the manner of a farewell
    uint64_t bytes;   // of the whole message
    Form form;
};

static_assert(sizeof(FrameHeader) == 104 && sizeof(Form) == 16);

constexpr uint32_t kFrameMagic = 0x4c525354;
constexpr uint8_t kFrameVersion = 2;
constexpr uint16_t kHasMark = 1;  // flags: a word follows the payload
constexpr uint32_t kWanted = 0;
constexpr uint32_t kUnwanted = 1;          // part of a ping: an order at that end has put the rail out of use
constexpr uint64_t kAsksAgain = 1;         // an offer whose credit may have come and been dropped
constexpr uint64_t kAtOnce = 0;            // a farewell: what was under way is given up
constexpr uint64_t kInGoodOrder = 1;       // everything is acknowledged; the sender waits for an answer
constexpr uint64_t kAnswer = 2;            // to a farewell in good order
constexpr size_t kLongestPiece = 1 << 20;  // of one frame of data
constexpr size_t kLongestControl = 1024;   // payload of any other frame
// Of a receiver, per session, for small messages that nobody asked for yet: at first, and at most.
constexpr size_t kFirstPoolBytes = 256 << 10;
constexpr size_t kPoolBytes = 4 << 20;
constexpr uint64_t kMarkGood = 0x444f4f4744415441;
constexpr uint64_t kMarkVoid = 0x44494f5644415441;

struct Range {
    uint64_t first;
    uint64_t last;
};

// More than a session can ever count. One more than any valid number is still a number.
constexpr uint64_t kLastNumber = uint64_t{1} << 62;
constexpr size_t kRangesPerAck = kLongestControl / sizeof(Range);

inline bool is_numbered(FrameType type) noexcept {
    return type <= FrameType::kVoid;
}

// Fills in magic, version and checksum; all other fields must be set before.
void seal(FrameHeader& header) noexcept;
// Null, or the reason why this header cannot be ours.
const char* fault_of(const FrameHeader& header, int64_t epoch) noexcept;

// Which message of which operation.
struct MessageKey {
    uint64_t group = 0;
    uint64_t sequence = 0;
    uint32_t part = 0;

    bool operator<(const MessageKey& other) const {
        if (group != other.group)
            return group < other.group;
        return sequence != other.sequence ? sequence < other.sequence : part < other.part;
    }

    bool operator==(const MessageKey& other) const {
        return group == other.group && sequence == other.sequence && part == other.part;
    }
};

inline MessageKey key_of(const FrameHeader& header) noexcept {
    return {header.group, header.sequence, header.part};
}

// The numbers that have arrived: all up to one number, and ranges above it.
class Arrivals {
  public:
    // False if the number had arrived before.
    bool add(uint64_t number);
    bool has(uint64_t number) const;

    uint64_t through() const { return through_; }

    const std::vector<Range>& above() const { return above_; }

  private:
    uint64_t through_ = 0;
    std::vector<Range> above_;  // in order, with gaps between them; few: they come from rails of different speed
};

}  // namespace taskd::rail
