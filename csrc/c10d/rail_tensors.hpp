// Tensors as the plain memory that a rail group works on.
//
// Why: the transport knows addresses and bytes only. What cannot be that (a sparse tensor, one on another device, one
// whose memory was given back) must be refused by name before anything is sent, and what is not contiguous goes through
// a copy that is.
//
// All checks throw c10::Error, as torch's own backends do for the caller's mistakes, and say what to do instead.
//
// Does not: start operations, or know how they end.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "c10d/rail_work.hpp"
#include "rail/collectives/group.hpp"

namespace taskd::comm {

// A dense tensor on the CPU with its memory in place. `operation` is for the sentence.
void check_memory(const at::Tensor& tensor, const char* operation);
// The only tensor of a list; c10d's lists are as long as a process has devices.
at::Tensor& only(Tensors& tensors, const char* operation);
Tensors& only(std::vector<Tensors>& lists, const char* operation);
// As many as members, each with the elements and type of `model`.
void check_each(const Tensors& tensors, int size, const at::Tensor& model, const char* operation);
// `whole` is `size` times `part`.
void check_whole(const at::Tensor& whole, const at::Tensor& part, int size, const char* operation);

rail::Dtype dtype_of(const at::Tensor& tensor);
// Throws also if there is no such reduction of this tensor's elements.
rail::Reduction reduction_of(const ::c10d::ReduceOp& op, const at::Tensor& tensor, const char* operation);

// Memory that is only read, in logical order: the tensor's own, or a copy's that the run keeps.
const void* to_read(RailRun& run, const at::Tensor& tensor, const char* operation);
// Memory to write to, copied back at the end if it is not the tensor's own. `contents`: it is read, too.
void* to_write(RailRun& run, const at::Tensor& tensor, bool contents, const char* operation);
// As to_read(), but of a copy if the tensor shares memory with one of `others`, except for `allowed`.
const void* to_read_apart(RailRun& run, const at::Tensor& tensor, const Tensors& others, const at::Tensor* allowed,
                          const char* operation);

// The `index`-th of equal parts of `bytes` each.
inline const void* part_of(const void* memory, size_t bytes, int index) {
    return static_cast<const char*>(memory) + bytes * static_cast<size_t>(index);
}

inline void* part_of(void* memory, size_t bytes, int index) {
    return static_cast<char*>(memory) + bytes * static_cast<size_t>(index);
}

}  // namespace taskd::comm
