// Digests of memory: 64 bits that differ when the contents differ, at the speed of memory.
//
// Why: ranks that hold the same data compare it again and again, and a training step must not feel it. zlib's checksum
// reads 1 GB/s; this one reads as fast as the memory gives. Any change within one word of 8 bytes changes the digest
// for certain, because each word goes into its lane by an invertible operation. Other changes are missed once in 2^64.
// It is no protection against somebody who looks for two contents with one digest.
//
// Does not: know tensors, or which digests are compared.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taskd::native {

// Returns the digest of `bytes` bytes at `data`; their number counts as well. It is the same on all machines with the
// same byte order.
uint64_t digest(const void* data, size_t bytes);

}  // namespace taskd::native
