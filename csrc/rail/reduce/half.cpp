// Kernels for the two 16-bit floats: computed as float32, rounded to their own type once, at the end.
#include "rail/reduce/kernels.hpp"

namespace taskd::rail::lanes {
namespace {

template <class Format>
Kernel of(Reduction reduction) {
    switch (reduction) {
        case Reduction::kSum:
        case Reduction::kAverage:
            return kernel<Format, Sum>();
        case Reduction::kProduct:
            return kernel<Format, Product>();
        case Reduction::kMin:
            return kernel<Format, Min>();
        case Reduction::kMax:
            return kernel<Format, Max>();
        default:
            return nullptr;
    }
}

}  // namespace

Kernel half_kernel(Dtype dtype, Reduction reduction) {
    return dtype == Dtype::kFloat16    ? of<Float16>(reduction)
           : dtype == Dtype::kBfloat16 ? of<Bfloat16>(reduction)
                                       : nullptr;
}

}  // namespace taskd::rail::lanes
