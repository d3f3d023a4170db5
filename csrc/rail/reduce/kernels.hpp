// The loop over elements and ranks, compiled for several processors, and the tables of these compiled kernels.
//
// Why one loop over all ranks at once: adding n buffers two at a time would write and read the result n - 1 times. Here
// each element is read once per rank and written once; intermediate values stay in registers.
//
// Does not: choose a kernel by type (reduce.cpp does).
#pragma once

#include <type_traits>

#include "rail/form.hpp"
#include "rail/reduce/lanes.hpp"

namespace taskd::rail::lanes {

// `divisor` is not 1 for an average.
using Kernel = void (*)(const void* const* sources, int size, void* out, size_t count, int divisor);

// The only rounding to the format, after all ranks.
template <class Format>
TASKD_INLINE void finish(typename Format::Value& value, int divisor) {
    if constexpr (Format::kDivides) {
        if (divisor != 1)
            value /= static_cast<std::decay_t<decltype(value[0])>>(divisor);
    }
    Format::round(value);
    Format::settle(value);
}

template <class Format, class Op, size_t Vectors>
TASKD_INLINE void reduce_block(const void* const* sources, int size, char* out, size_t at, int divisor) {
    typename Format::Value values[Vectors];
    typename Format::Value other;
    for (size_t index = 0; index < Vectors; ++index)
        Format::load(values[index], static_cast<const char*>(sources[0]) + at + index * Format::kBytes);
    for (int source = 1; source < size; ++source) {
        const char* const from = static_cast<const char*>(sources[source]) + at;
        for (size_t index = 0; index < Vectors; ++index) {
            Format::load(other, from + index * Format::kBytes);
            Op::apply(values[index], other);
        }
    }
    for (size_t index = 0; index < Vectors; ++index) {
        finish<Format>(values[index], divisor);
        Format::store(out + at + index * Format::kBytes, values[index]);
    }
}

// The last elements, which do not fill a vector: each source is copied into one that is filled up with zeros.
template <class Format, class Op>
TASKD_INLINE void reduce_rest(const void* const* sources, int size, char* out, size_t at, size_t rest, int divisor) {
    alignas(64) char padded[Format::kBytes] = {};
    typename Format::Value value;
    typename Format::Value other;
    std::memcpy(padded, static_cast<const char*>(sources[0]) + at, rest);
    Format::load(value, padded);
    for (int source = 1; source < size; ++source) {
        std::memcpy(padded, static_cast<const char*>(sources[source]) + at, rest);
        Format::load(other, padded);
        Op::apply(value, other);
    }
    finish<Format>(value, divisor);
    Format::store(padded, value);
    std::memcpy(out + at, padded, rest);
}

template <class Format, class Op>
TASKD_INLINE void reduce_all(const void* const* sources, int size, void* out, size_t count, int divisor) {
    constexpr size_t kVectors = 4;
    constexpr size_t kElements = sizeof(typename Format::Value) / sizeof(typename Format::Value{}[0]);
    constexpr size_t kElementBytes = Format::kBytes / kElements;
    const size_t bytes = count * kElementBytes;
    size_t at = 0;
    for (; at + kVectors * Format::kBytes <= bytes; at += kVectors * Format::kBytes)
        reduce_block<Format, Op, kVectors>(sources, size, static_cast<char*>(out), at, divisor);
    for (; at + Format::kBytes <= bytes; at += Format::kBytes)
        reduce_block<Format, Op, 1>(sources, size, static_cast<char*>(out), at, divisor);
    if (at < bytes)
        reduce_rest<Format, Op>(sources, size, static_cast<char*>(out), at, bytes - at, divisor);
}

template <class Format, class Op>
void reduce_anywhere(const void* const* sources, int size, void* out, size_t count, int divisor) {
    reduce_all<Format, Op>(sources, size, out, count, divisor);
}

#if defined(__x86_64__)
template <class Format, class Op>
[[gnu::target("avx2")]] void reduce_avx2(const void* const* sources, int size, void* out, size_t count, int divisor) {
    reduce_all<Format, Op>(sources, size, out, count, divisor);
}

template <class Format, class Op>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]] void reduce_avx512(const void* const* sources, int size,
                                                                         void* out, size_t count, int divisor) {
    reduce_all<Format, Op>(sources, size, out, count, divisor);
}
#endif

// The best kernel for this processor.
template <class Format, class Op>
Kernel kernel() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return reduce_avx512<Format, Op>;
    if (__builtin_cpu_supports("avx2"))
        return reduce_avx2<Format, Op>;
#endif
    return reduce_anywhere<Format, Op>;
}

// Null if there is no such reduction.
Kernel float_kernel(Dtype dtype, Reduction reduction);
Kernel half_kernel(Dtype dtype, Reduction reduction);
Kernel integer_kernel(Dtype dtype, Reduction reduction);

}  // namespace taskd::rail::lanes
