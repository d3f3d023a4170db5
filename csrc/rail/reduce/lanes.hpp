// The layout of elements in memory and in vectors, and the operations on two of them.
//
// Why vectors by hand: the same instructions work on every element, also on the last odd ones (padded). So no element's
// result depends on its place. The compiler's own vectors are used, not those of one processor, and one source is
// compiled for several processors.
//
// Everything takes references and is always inlined: a vector that is passed by value would tie the calling convention
// to one processor.
//
// Does not: loop (kernels.hpp does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#define TASKD_INLINE [[gnu::always_inline]] static inline

namespace taskd::rail::lanes {

template <class T>
using Wide [[gnu::vector_size(64)]] = T;

using Floats = Wide<float>;
using Words = Wide<uint32_t>;
typedef uint16_t Halves __attribute__((vector_size(32)));

// ---- formats: from memory to a value to compute with, and back

// Integers, and floats that are computed with as they are stored.
template <class T>
struct Plain {
    using Element = T;
    using Value = Wide<T>;
    static constexpr size_t kBytes = sizeof(Value);
    static constexpr bool kDivides = std::numeric_limits<T>::has_quiet_NaN;

    TASKD_INLINE void load(Value& value, const char* from) { __builtin_memcpy(&value, from, kBytes); }

    TASKD_INLINE void store(char* to, const Value& value) { __builtin_memcpy(to, &value, kBytes); }

    TASKD_INLINE void round(Value&) {}

    TASKD_INLINE void settle(Value& value) {
        if constexpr (kDivides)
            value = value == value ? value : Value{} + std::numeric_limits<T>::quiet_NaN();
    }
};

struct Bfloat16 {
    using Value = Floats;
    static constexpr size_t kBytes = sizeof(Halves);
    static constexpr bool kDivides = true;

    TASKD_INLINE void load(Value& value, const char* from) {
        Halves halves;
        __builtin_memcpy(&halves, from, kBytes);
        value = (Floats)(__builtin_convertvector(halves, Words) << 16);
    }

    TASKD_INLINE void store(char* to, const Value& value) {
        const Halves halves = __builtin_convertvector((Words)value >> 16, Halves);
        __builtin_memcpy(to, &halves, kBytes);
    }

    // Rounds to nearest, ties to even. A NaN's bits must not be carried into infinity or zero.
    TASKD_INLINE void round(Value& value) {
        const Words bits = (Words)value;
        const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
        value = value == value ? (Floats)rounded : Floats{} + std::numeric_limits<float>::quiet_NaN();
    }

    TASKD_INLINE void settle(Value& value) { Plain<float>::settle(value); }
};

struct Float16 {
    using Value = Floats;
    static constexpr size_t kBytes = sizeof(Halves);
    static constexpr bool kDivides = true;

    TASKD_INLINE void load(Value& value, const char* from) {
        Halves halves;
        __builtin_memcpy(&halves, from, kBytes);
        const Words bits = __builtin_convertvector(halves, Words);
        const Words sign = (bits & 0x8000) << 16;
        const Words size = (bits & 0x7fff) << 13;
        // A product moves the exponent by 127 - 15, which also turns a denormal half into a normal float.
        Words finite = (Words)((Floats)size * 0x1p112f);
        finite = (bits & 0x7c00) == 0x7c00 ? size | 0x7f800000 : finite;
        value = (Floats)(finite | sign);
    }

    // The value is rounded already, so only the layout changes.
    TASKD_INLINE void store(char* to, const Value& value) {
        const Words bits = (Words)value;
        const Words sign = (bits >> 16) & 0x8000;
        const Floats size = (Floats)(bits & 0x7fffffff);
        const Words normal = ((Words)size - 0x38000000) >> 13;
        const Words denormal = (Words)(size + 0.5F) - 0x3f000000;
        Words half = size < 0x1p-14f ? denormal : normal;
        half = size <= 65504.0F ? half : Words{} + 0x7c00;
        half = value == value ? half : Words{} + 0x7e00;
        const Halves halves = __builtin_convertvector(half | sign, Halves);
        __builtin_memcpy(to, &halves, kBytes);
    }

    TASKD_INLINE void round(Value& value) {
        const Words bits = (Words)value;
        const Words sign = bits & 0x80000000;
        const Words size = bits & 0x7fffffff;
        const Words normal = (size + 0xfff + ((size >> 13) & 1)) & ~0x1fffU;
        // Below 2^-14 all halves are multiples of 2^-24. A float near 0.5 is rounded to the same multiples.
        const Words denormal = (Words)(((Floats)size + 0.5F) - 0.5F);
        Words rounded = (Floats)size < 0x1p-14f ? denormal : normal;
        rounded = (Floats)size < 65520.0F ? rounded : Words{} + 0x7f800000;
        rounded = value == value ? rounded : Words{} + 0x7fc00000;
        value = (Floats)(rounded | sign);
    }

    TASKD_INLINE void settle(Value& value) { Plain<float>::settle(value); }
};

// ---- operations on two values; the first one keeps the result

struct Sum {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value += other;
    }
};

struct Product {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value *= other;
    }
};

// A NaN on the left stays. A NaN on the right is taken because the comparison is false.
struct Min {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value = ((value < other) | (value != value)) ? value : other;
    }
};

struct Max {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value = ((value > other) | (value != value)) ? value : other;
    }
};

struct And {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value &= other;
    }
};

struct Or {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value |= other;
    }
};

struct Xor {
    template <class Value>
    TASKD_INLINE void apply(Value& value, const Value& other) {
        value ^= other;
    }
};

}  // namespace taskd::rail::lanes
