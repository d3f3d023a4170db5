// What travels on a link: frames of a fixed header and, for some, a payload.
//
// Why so: a receiver must know where the bytes of a frame belong before it reads them, so that they are read into
// place; and it must never believe a header that is damaged, of another epoch or out of bounds. Every header carries
// what its sender has received so far, so that traffic in both directions needs few frames for acknowledgement alone.
//
// A numbered frame is kept by its sender until it is acknowledged; numbers count up from 1 over all links of a session.
// A payload of kPaddedBytes or more is read from memory that may be taken back while it is being written: it is
// followed by a word that says whether all of it was real.
//
// Numbers are in the order of bytes of the machine; the magic of a machine with the other order is refused.
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
    kDiffers,   // the answer, if the receiver is in another one
    kVoid,      // a number whose bytes are not needed any more
    kAck,       // what has been received: payload of Ranges above the header's cumulative number
    kPing,      // `offset` comes back in a; `part`: whether the sender wants the link to be used
    kPong,      // ... of the same link
    kBye,       // the sender leaves the session for good; the payload says why, `offset` in which manner
    kLost       // `offset` names a connection of rail `part` that its sender has lost; the other end may not know
};

struct FrameHeader {
    uint32_t magic;
    uint8_t version;
    FrameType type;
    uint16_t flags;
    uint32_t checksum;  // of the header with this word 0
    uint32_t length;    // of the payload
    int64_t epoch;
    uint64_t number;    // 0: not numbered
    uint64_t received;  // all numbers up to here have arrived
    uint64_t freed;     // bytes of small messages that have left the receiver's pool, since the session began
    uint64_t group;
    uint64_t sequence;
    uint32_t part;
    uint32_t reserved;
    uint64_t offset;  // of a payload; what a ping brings; kAsksAgain of an offer; the manner of a farewell
    uint64_t bytes;   // of the whole message
    Form form;
};

static_assert(sizeof(FrameHeader) == 104 && sizeof(Form) == 16);

constexpr uint32_t kFrameMagic = 0x4c525354;
constexpr uint8_t kFrameVersion = 2;
constexpr uint16_t kHasMark = 1;  // flags: a word follows the payload
constexpr uint32_t kWanted = 0;
constexpr uint32_t kUnwanted = 1;          // part of a ping: the rail is out of use at that end, by an order
constexpr uint64_t kAsksAgain = 1;         // an offer whose credit may have come and been dropped
constexpr uint64_t kAtOnce = 0;            // a farewell: what was under way is given up
constexpr uint64_t kInGoodOrder = 1;       // everything is acknowledged; an answer is waited for
constexpr uint64_t kAnswer = 2;            // to a farewell in good order
constexpr size_t kLongestPiece = 1 << 20;  // of one frame of data
constexpr size_t kLongestControl = 1024;   // payload of any other frame
constexpr size_t kPoolBytes = 4 << 20;     // of a receiver, per session, for small messages nobody asked for yet
constexpr uint64_t kMarkGood = 0x444f4f4744415441;
constexpr uint64_t kMarkVoid = 0x44494f5644415441;

struct Range {
    uint64_t first;
    uint64_t last;
};

// More than a session can ever count; so that one more than a number is a number, too.
constexpr uint64_t kLastNumber = uint64_t{1} << 62;
constexpr size_t kRangesPerAck = kLongestControl / sizeof(Range);

inline bool is_numbered(FrameType type) noexcept {
    return type <= FrameType::kVoid;
}

// Fills in magic, version and checksum; everything else stands already.
void seal(FrameHeader& header) noexcept;
// Null, or why this header cannot be ours.
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

// Which numbers have arrived: all up to one, and ranges above it.
class Arrivals {
  public:
    // False if it had been here before.
    bool add(uint64_t number);
    bool has(uint64_t number) const;

    uint64_t through() const { return through_; }

    const std::vector<Range>& above() const { return above_; }

  private:
    uint64_t through_ = 0;
    std::vector<Range> above_;  // in order, with gaps between; as many as rails differ in speed, so few
};

}  // namespace taskd::rail
