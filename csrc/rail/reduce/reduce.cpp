// Chooses the kernel for each reduction; reduce.hpp says why.
#include "rail/reduce/reduce.hpp"

#include <cassert>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rail/reduce/kernels.hpp"

namespace taskd::rail {
namespace {

// Any thread may complete an operation, and torch lets users flush denormals on their threads.
class PlainArithmetic {
  public:
#if defined(__x86_64__)
    PlainArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }

    ~PlainArithmetic() { _mm_setcsr(before_); }

  private:
    static constexpr unsigned kDefault = 0x1f80;  // rounds to nearest, keeps denormals, no traps
    const unsigned before_;
#else
    PlainArithmetic() {}

    ~PlainArithmetic() {}
#endif
};

bool is_complex(Dtype dtype) {
    return dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128;
}

lanes::Kernel kernel_of(Dtype dtype, Reduction reduction) {
    if (is_complex(dtype) && reduction != Reduction::kSum && reduction != Reduction::kAverage)
        return nullptr;
    if (const lanes::Kernel found = lanes::float_kernel(dtype, reduction))
        return found;
    if (const lanes::Kernel found = lanes::half_kernel(dtype, reduction))
        return found;
    return lanes::integer_kernel(dtype, reduction);
}

}  // namespace

const char* name_of(Dtype dtype) noexcept {
    static const char* const kNames[] = {"bytes",   "bool",     "int8",    "uint8",   "int16",     "int32",     "int64",
                                         "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
    const auto index = static_cast<size_t>(dtype);
    return index < sizeof kNames / sizeof *kNames ? kNames[index] : "an unknown type";
}

const char* name_of(Reduction reduction) noexcept {
    static const char* const kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"};
    const auto index = static_cast<size_t>(reduction);
    return index < sizeof kNames / sizeof *kNames ? kNames[index] : "an unknown reduction";
}

bool can_reduce(Dtype dtype, Reduction reduction) noexcept {
    return kernel_of(dtype, reduction) != nullptr;
}

void reduce(Dtype dtype, Reduction reduction, const void* const* sources, int size, void* out, size_t count) {
    const lanes::Kernel kernel = kernel_of(dtype, reduction);
    assert(kernel != nullptr && size > 0);
    const PlainArithmetic plain;
    kernel(sources, size, out, is_complex(dtype) ? 2 * count : count, reduction == Reduction::kAverage ? size : 1);
}

}  // namespace taskd::rail
