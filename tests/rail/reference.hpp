// The simplest possible reduction: one element at a time, one rank after the other. reduce.hpp must equal it bit for
// bit. Also inputs that contain all awkward values.
#pragma once

#include <random>
#include <vector>

#include "rail/collectives/group.hpp"

namespace taskd::rail::test {

using Bytes = std::vector<char>;

constexpr Dtype kReducible[] = {Dtype::kBool,    Dtype::kInt8,    Dtype::kUint8,     Dtype::kInt16,
                                Dtype::kInt32,   Dtype::kInt64,   Dtype::kFloat16,   Dtype::kBfloat16,
                                Dtype::kFloat32, Dtype::kFloat64, Dtype::kComplex64, Dtype::kComplex128};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kMin,
                                     Reduction::kMax, Reduction::kBitAnd,  Reduction::kBitOr,   Reduction::kBitXor};

Bytes reference(Dtype dtype, Reduction reduction, const std::vector<Bytes>& inputs);

// Returns random elements. About every hundredth is infinite, a NaN, a denormal or a signed zero.
Bytes elements(std::mt19937& random, Dtype dtype, size_t count);

double value_of_half(uint16_t bits, int mantissa_bits);
uint16_t half_of_value(double value, int mantissa_bits);

}  // namespace taskd::rail::test
