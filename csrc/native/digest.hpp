// Digests of memory: 64 bits that differ when the contents differ, at the speed of memory.
//
// Why: ranks that hold the same compare what they hold, again and again, and a training step must not feel it. A
// checksum of zlib's reads 1 GB/s, this reads what the memory gives. Any change within one word of 8 bytes changes the
// digest for certain, since each word goes into its lane by an operation that can be undone; other changes are missed
// once in 2^64. It is no protection against somebody who looks for two contents of one digest.
//
// Does not: know tensors, or who compares what.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::native {

// Of `bytes` bytes at `data`; their number counts as well. The same on every machine of one byte order.
uint64_t digest(const void* data, size_t bytes);

}  // namespace taskd::native
