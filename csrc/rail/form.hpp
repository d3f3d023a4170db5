// The form of an operation: which operation it is, and on what elements.
//
// Why a header of its own: the form travels in every frame, and the arithmetic needs element types, too. Neither has to
// know a group for that.
//
// Does not: say which forms make sense (the groups do).
#pragma once

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

    bool operator==(const Form& other) const {
        return kind == other.kind && dtype == other.dtype && reduction == other.reduction && flags == other.flags &&
               root == other.root && count == other.count;
    }
};

}  // namespace taskd::rail
