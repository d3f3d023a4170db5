#include "rail/session/acknowledger.hpp"

#include <string>
#include <utility>

namespace taskd::rail {
namespace {

constexpr size_t kAtOnceBytes = 16 << 10;  // pieces of this size are acknowledged at once
constexpr int kAtOnceFrames = 32;
constexpr int64_t kAcknowledgeNs = 3 * kMillisecondNs;

}  // namespace

void Acknowledger::count_data(const FrameHeader& header, bool counts) {
    if (header.length >= kAtOnceBytes || ++frames_ >= kAtOnceFrames || !counts)
        is_due_ = true;
}

void Acknowledger::count_control() {
    if (++frames_ >= kAtOnceFrames)
        is_due_ = true;
}

int64_t Acknowledger::wait_from(int64_t now) {
    by_ns_ = now + kAcknowledgeNs;
    return by_ns_;
}

bool Acknowledger::on_time(int64_t now) {
    if (by_ns_ == 0 || by_ns_ > now)
        return false;
    is_due_ = true;
    by_ns_ = 0;
    return true;
}

void Acknowledger::stamp(FrameHeader& header) const {
    header.received = arrivals_.through();
    header.freed = inbox_.freed() + inbox_.grown();
}

FrameHeader Acknowledger::bare(FrameType type) const {
    FrameHeader header{};
    header.type = type;
    header.epoch = epoch_;
    stamp(header);
    return header;
}

void Acknowledger::say(Link& link) {
    FrameHeader header = bare(FrameType::kAck);
    std::string ranges;
    for (const Range& range : arrivals_.above()) {
        if (ranges.size() + sizeof range > kLongestControl)
            break;
        ranges.append(reinterpret_cast<const char*>(&range), sizeof range);
    }
    header.length = static_cast<uint32_t>(ranges.size());
    link.stage(header, std::move(ranges));
    said();
}

void Acknowledger::said() {
    is_due_ = false;
    by_ns_ = 0;
    frames_ = 0;
}

}  // namespace taskd::rail
