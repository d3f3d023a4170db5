// The form of an operation: which operation it is, and on what elements.
//
// Why a header of its own: the form travels in every frame, and the arithmetic needs element types, too. Neither has to
// know a group for that.
//
// Does not: say which forms make sense (the groups do).
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::rail {

enum class Kind : uint8_t {
    kNone,
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kReduce,
    kGather,
    kScatter,
    kAllToAll,
    kBarrier,
    kPointToPoint
};

enum class Dtype : uint8_t {
    kByte,  // moved, never reduced: for all types without arithmetic here
    kBool,
    kInt8,
    kUint8,
    kInt16,
    kInt32,
    kInt64,
    kFloat16,
    kBfloat16,
    kFloat32,
    kFloat64,
    kComplex64,
    kComplex128
};

constexpr size_t size_of(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::kByte:
        case Dtype::kBool:
        case Dtype::kInt8:
        case Dtype::kUint8:
            return 1;
        case Dtype::kInt16:
        case Dtype::kFloat16:
        case Dtype::kBfloat16:
            return 2;
        case Dtype::kInt32:
        case Dtype::kFloat32:
            return 4;
        case Dtype::kInt64:
        case Dtype::kFloat64:
        case Dtype::kComplex64:
            return 8;
        case Dtype::kComplex128:
            return 16;
    }
    return 1;
}

enum class Reduction : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

// The description of an operation in the header of each of its frames: ranks that disagree learn the difference by
// name.
struct Form {
    uint8_t kind = 0;       // Kind
    uint8_t dtype = 0;      // Dtype
    uint8_t reduction = 0;  // Reduction
    uint8_t flags = 0;
    int32_t root = -1;
    uint64_t count = 0;  // of elements, of the whole operation

    // Whether it is of a message from one rank to another. Such a message may be shorter than its receiver's memory.
    bool is_message() const { return kind == static_cast<uint8_t>(Kind::kPointToPoint); }

    uint64_t bytes() const { return count * size_of(static_cast<Dtype>(dtype)); }

    // Messages and broadcasts move bytes from one memory to another, whatever each side takes them for.
    bool operator==(const Form& other) const {
        const bool only_moves = is_message() || kind == static_cast<uint8_t>(Kind::kBroadcast);
        const bool as_much = only_moves ? bytes() == other.bytes() : dtype == other.dtype && count == other.count;
        return kind == other.kind && as_much && reduction == other.reduction && flags == other.flags &&
               root == other.root;
    }

    // Whether what a rank with this form sends may go where a rank with that form receives.
    bool fits(const Form& receiving) const {
        return is_message() && receiving.is_message() ? bytes() <= receiving.bytes() : *this == receiving;
    }
};

}  // namespace taskd::rail
