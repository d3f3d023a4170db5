// The arithmetic of collectives: one element from each rank, combined in the order of ranks.
//
// Why here and not in a library: the result must be the same wherever an element lies in its buffer, and on whatever
// machine and thread it is computed. It must also be computed at the speed of memory, since nothing else runs on the
// engine's thread meanwhile.
//
// Floats of 16 bits are computed as float32 and rounded to their own type once, after the last rank. If they were
// rounded after each step, a sum over many ranks would lose what each rank adds. A NaN in any rank makes the result a
// NaN, also of a minimum or maximum, and always the same NaN: otherwise the payload would depend on how a compiler
// orders two operands. Control bits of the calling thread (flushed denormals, another rounding) have no effect. Sums
// and products of integers wrap around; sums and products of booleans are "or" and "and".
//
// Does not: allocate, or know who the ranks are.
#pragma once

#include <cstddef>

#include "rail/form.hpp"

namespace taskd::rail {

const char* name_of(Dtype dtype) noexcept;
const char* name_of(Reduction reduction) noexcept;
// Whether this reduction exists for this element type.
bool can_reduce(Dtype dtype, Reduction reduction) noexcept;

// out[i] = sources[0][i] (+) sources[1][i] (+) ... `out` may be one of the sources, but must not overlap one otherwise.
// can_reduce() must be true.
void reduce(Dtype dtype, Reduction reduction, const void* const* sources, int size, void* out, size_t count);

}  // namespace taskd::rail
