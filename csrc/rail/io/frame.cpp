#include "rail/io/frame.hpp"

#include <algorithm>
#include <cstring>

namespace taskd::rail {
namespace {

uint32_t checksum_of(FrameHeader header) noexcept {
    header.checksum = 0;
    uint64_t words[sizeof header / 8];
    std::memcpy(words, &header, sizeof header);
    uint64_t sum = 0x9e3779b97f4a7c15;
    for (const uint64_t word : words) {
        sum = (sum ^ word) * 0xff51afd7ed558ccd;
        sum ^= sum >> 32;
    }
    return static_cast<uint32_t>(sum);
}

}  // namespace

void seal(FrameHeader& header) noexcept {
    header.magic = kFrameMagic;
    header.version = kFrameVersion;
    header.checksum = checksum_of(header);
}

const char* fault_of(const FrameHeader& header, int64_t epoch) noexcept {
    if (header.magic != kFrameMagic || header.version != kFrameVersion)
        return "a frame does not begin like one of ours";
    if (header.checksum != checksum_of(header))
        return "the header of a frame is damaged";
    if (header.type < FrameType::kData || header.type > FrameType::kLost)
        return "a frame of an unknown type";
    if (header.epoch != epoch)
        return "a frame of another epoch";
    if (is_numbered(header.type) != (header.number != 0) || header.number > kLastNumber)
        return "a frame has a number and should not, or the other way round";
    if (header.type != FrameType::kData)
        return header.length > kLongestControl || header.flags != 0 ? "a frame that is too long" : nullptr;
    if ((header.flags & ~kHasMark) != 0)
        return "a frame with unknown flags";
    const bool is_small = header.bytes <= kEagerBytes;
    if (is_small && (header.offset != 0 || header.length != header.bytes))
        return "a small message in parts";
    if (header.length > std::max(kLongestPiece, kEagerBytes) || header.offset > header.bytes ||
        header.length > header.bytes - header.offset)
        return "a frame outside of its message";
    return nullptr;
}

bool Arrivals::has(uint64_t number) const {
    if (number <= through_)
        return true;
    for (const Range& range : above_) {
        if (number >= range.first && number <= range.last)
            return true;
    }
    return false;
}

bool Arrivals::add(uint64_t number) {
    if (number <= through_)
        return false;
    if (number == through_ + 1 && above_.empty()) {
        through_ = number;
        return true;
    }
    auto place =
        std::find_if(above_.begin(), above_.end(), [&](const Range& range) { return range.last + 1 >= number; });
    if (place == above_.end() || number + 1 < place->first) {
        place = above_.insert(place, {number, number});
    } else if (number >= place->first && number <= place->last) {
        return false;
    } else if (number + 1 == place->first) {
        place->first = number;
    } else {
        place->last = number;
        const auto next = place + 1;
        if (next != above_.end() && next->first == number + 1) {
            place->last = next->last;
            above_.erase(next);
        }
    }
    if (above_.front().first == through_ + 1) {
        through_ = above_.front().last;
        above_.erase(above_.begin());
    }
    return true;
}

}  // namespace taskd::rail
