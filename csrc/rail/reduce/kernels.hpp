// The loop over elements and ranks, compiled for several processors, and the tables of what it was compiled for.
//
// Why one loop over all ranks at once: the sum of n buffers two at a time would write and read the result n - 1 times.
// Here each element is read once per rank and written once; what is between stays in registers.
//
// Does not: choose a kernel by type (reduce.cpp does).
#pragma once

#include <type_traits>

#include "rail/form.hpp"
#include "rail/reduce/lanes.hpp"

namespace taskd::rail::lanes {

// `divisor` is not 1 for an average.
using Kernel = void (*)(const void* const* sources, int size, void* out, size_t count, int divisor);

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
            if constexpr (Op::kRounds)
                Format::round(values[index]);
        }
    }
    for (size_t index = 0; index < Vectors; ++index) {
        if constexpr (Format::kDivides) {
            if (divisor != 1) {
                values[index] /= static_cast<std::decay_t<decltype(values[index][0])>>(divisor);
                Format::round(values[index]);
            }
        }
        Format::settle(values[index]);
        Format::store(out + at + index * Format::kBytes, values[index]);
    }
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
    if (at == bytes)
        return;
    // The odd ones go the same way, one rank after the other, in a vector filled up with zeros.
    const size_t rest = bytes - at;
    alignas(64) char padded[2][Format::kBytes] = {};
    const void* const pair[2] = {padded[0], padded[1]};
    std::memcpy(padded[0], static_cast<const char*>(sources[0]) + at, rest);
    for (int source = 1; source < size; ++source) {
        std::memcpy(padded[1], static_cast<const char*>(sources[source]) + at, rest);
        reduce_block<Format, Op, 1>(pair, 2, padded[0], 0, source + 1 == size ? divisor : 1);
    }
    if (size == 1)
        reduce_block<Format, Op, 1>(pair, 1, padded[0], 0, divisor);
    std::memcpy(static_cast<char*>(out) + at, padded[0], rest);
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
