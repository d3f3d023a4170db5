// Kernels for the floats that processors support themselves. Complex numbers are pairs of these when they are only
// added.
#include "rail/reduce/kernels.hpp"

namespace taskd::rail::lanes {
namespace {

template <class Element>
Kernel of(Reduction reduction) {
    switch (reduction) {
        case Reduction::kSum:
        case Reduction::kAverage:
            return kernel<Plain<Element>, Sum>();
        case Reduction::kProduct:
            return kernel<Plain<Element>, Product>();
        case Reduction::kMin:
            return kernel<Plain<Element>, Min>();
        case Reduction::kMax:
            return kernel<Plain<Element>, Max>();
        default:
            return nullptr;
    }
}

}  // namespace

Kernel float_kernel(Dtype dtype, Reduction reduction) {
    switch (dtype) {
        case Dtype::kFloat32:
        case Dtype::kComplex64:
            return of<float>(reduction);
        case Dtype::kFloat64:
        case Dtype::kComplex128:
            return of<double>(reduction);
        default:
            return nullptr;
    }
}

}  // namespace taskd::rail::lanes
