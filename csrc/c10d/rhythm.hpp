// How long an operation of a kind takes in this job, learned from those that succeeded, and when one is suspiciously
// late.
//
// Why: a fixed timeout must fit every job, so it is minutes long, and a hang is noticed that late. A job's own rhythm
// fits the job. If an operation never took longer than some time and now takes ten times as long, that is worth a
// report.
//
// Learning: the first operations of a kind teach nothing (set-up, warm-up of caches and allocators, a first step that
// compiles). After them the longest time is remembered. It fades slowly, so that one long pause does not hide hangs for
// ever. A late success counts as well: a job that has slowed down learns longer times from what it did, not from a
// fault.
//
// Does not: read a clock, act, or grow. A group has few kinds, and those beyond kKinds are not watched.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace taskd::comm {

class Rhythm {
  public:
    using Nanoseconds = std::chrono::nanoseconds;

    static constexpr size_t kKinds = 16;
    static constexpr uint32_t kWarmUp = 32;  // operations of a kind that teach nothing
    static constexpr int64_t kFactor = 10;   // an operation is late after this many times the longest time
    static constexpr int64_t kFading = 256;  // the longest time loses 1/kFading with each shorter one
    static constexpr Nanoseconds kLeast = std::chrono::seconds(5);  // below this nothing is late
    static constexpr Nanoseconds kUnknown = Nanoseconds::max();

    void took(uint16_t kind, Nanoseconds time) noexcept;

    // Returns the time after which an operation of the kind is late. kUnknown: nothing has been learned.
    Nanoseconds limit(uint16_t kind) const noexcept;

  private:
    struct Beat {
        uint16_t kind = 0;
        uint32_t count = 0;
        int64_t longest_ns = 0;
    };

    std::array<Beat, kKinds> beats_{};
    size_t used_ = 0;
};

}  // namespace taskd::comm
