// See rhythm.hpp.
#include "c10d/rhythm.hpp"

#include <algorithm>

namespace taskd::comm {

void Rhythm::took(uint16_t kind, Nanoseconds time) noexcept {
    const auto end = beats_.begin() + static_cast<ptrdiff_t>(used_);
    auto beat = std::find_if(beats_.begin(), end, [kind](const Beat& one) { return one.kind == kind; });
    if (beat == end) {
        if (used_ == beats_.size())
            return;
        ++used_;
        *beat = Beat{kind, 0, 0};
    }
    if (beat->count < kWarmUp) {
        ++beat->count;
        return;
    }
    beat->longest_ns = std::max(beat->longest_ns - beat->longest_ns / kFading, int64_t{time.count()});
}

Rhythm::Nanoseconds Rhythm::limit(uint16_t kind) const noexcept {
    const auto end = beats_.begin() + static_cast<ptrdiff_t>(used_);
    const auto beat = std::find_if(beats_.begin(), end, [kind](const Beat& one) { return one.kind == kind; });
    if (beat == end || beat->longest_ns == 0)
        return kUnknown;
    if (beat->longest_ns > kUnknown.count() / kFactor)
        return kUnknown;
    return std::max(kLeast, Nanoseconds(beat->longest_ns * kFactor));
}

}  // namespace taskd::comm
