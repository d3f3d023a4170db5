// The plainest reduction there is: one element at a time, one rank after the other; what reduce.hpp must equal bit for
// bit. And inputs with everything in them that is awkward.
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

// Every hundredth element or so is infinite, not a number, a denormal or a zero with a sign.
Bytes elements(std::mt19937& random, Dtype dtype, size_t count);

double value_of_half(uint16_t bits, int mantissa_bits);
uint16_t half_of_value(double value, int mantissa_bits);

}  // namespace taskd::rail::test
