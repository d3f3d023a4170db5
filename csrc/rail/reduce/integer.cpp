// Kernels for integers and booleans. What does not depend on the sign is compiled as unsigned, so that it may wrap
// around.
#include <type_traits>

#include "rail/reduce/kernels.hpp"

namespace taskd::rail::lanes {
namespace {

template <class Element>
Kernel of(Reduction reduction) {
    using Bits = Plain<std::make_unsigned_t<Element>>;
    switch (reduction) {
        case Reduction::kSum:
            return kernel<Bits, Sum>();
        case Reduction::kProduct:
            return kernel<Bits, Product>();
        case Reduction::kMin:
            return kernel<Plain<Element>, Min>();
        case Reduction::kMax:
            return kernel<Plain<Element>, Max>();
        case Reduction::kBitAnd:
            return kernel<Bits, And>();
        case Reduction::kBitOr:
            return kernel<Bits, Or>();
        case Reduction::kBitXor:
            return kernel<Bits, Xor>();
        default:
            return nullptr;
    }
}

// Booleans are bytes of 0 or 1.
Kernel of_booleans(Reduction reduction) {
    switch (reduction) {
        case Reduction::kSum:
        case Reduction::kMax:
            return of<uint8_t>(Reduction::kBitOr);
        case Reduction::kProduct:
        case Reduction::kMin:
            return of<uint8_t>(Reduction::kBitAnd);
        case Reduction::kAverage:
            return nullptr;
        default:
            return of<uint8_t>(reduction);
    }
}

}  // namespace

Kernel integer_kernel(Dtype dtype, Reduction reduction) {
    switch (dtype) {
        case Dtype::kBool:
            return of_booleans(reduction);
        case Dtype::kInt8:
            return of<int8_t>(reduction);
        case Dtype::kUint8:
            return of<uint8_t>(reduction);
        case Dtype::kInt16:
            return of<int16_t>(reduction);
        case Dtype::kInt32:
            return of<int32_t>(reduction);
        case Dtype::kInt64:
            return of<int64_t>(reduction);
        default:
            return nullptr;
    }
}

}  // namespace taskd::rail::lanes
