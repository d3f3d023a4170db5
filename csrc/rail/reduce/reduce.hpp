// Arithmetic of collectives: one element from each rank, taken together in the order of ranks.
//
// Why here and not with a library: the result must be one and the same whatever the place of an element in its buffer,
// whatever machine and thread it is computed on, and it must be made at the speed of memory, since nothing else runs on
// the engine's thread meanwhile.
//
// Floats of 16 bits are reckoned with as float32 and rounded to their own type once, behind the last rank: rounded
// after each step, a sum over many ranks would lose what each of them adds. A NaN in any rank makes a NaN, also of a
// minimum or maximum, and always the same one: which payload survives would else depend on how a compiler orders two
// operands. Control bits of the calling thread (flushed denormals, another rounding) do not count. Sums and products of
// integers wrap around; those of booleans are "or" and "and".
//
// Does not: allocate, or know who the ranks are.
#pragma once

#include <cstddef>

#include "rail/form.hpp"

namespace taskd::rail {

size_t size_of(Dtype dtype) noexcept;
const char* name_of(Dtype dtype) noexcept;
const char* name_of(Reduction reduction) noexcept;
// Whether there is such a reduction of such elements.
bool can_reduce(Dtype dtype, Reduction reduction) noexcept;

// out[i] = sources[0][i] (+) sources[1][i] (+) ... `out` may be one of the sources, but must not overlap one otherwise.
// can_reduce() must hold.
void reduce(Dtype dtype, Reduction reduction, const void* const* sources, int size, void* out, size_t count);

}  // namespace taskd::rail
