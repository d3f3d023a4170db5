// Tensors as the plain memory that a rail group works on.
//
// Why: the transport knows addresses and bytes only. Some tensors cannot be given as such: a sparse tensor, one whose
// memory was given back. They must be refused by name before anything is sent. A tensor that is not contiguous, or that
// is on another device, goes through a contiguous copy on the CPU, as it does with gloo.
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

// Checks that a tensor is dense and has its memory. Error messages name `operation`.
void check_memory(const at::Tensor& tensor, const char* operation);
// Returns the only tensor of a list. A list of c10d has one entry for each device of a process.
at::Tensor& only(Tensors& tensors, const char* operation);
Tensors& only(std::vector<Tensors>& lists, const char* operation);
// Checks that there is one tensor per member, each with as many elements as `model` and of its type.
void check_each(const Tensors& tensors, int size, const at::Tensor& model, const char* operation);
// Checks that `whole` has `size` times the elements of `part`.
void check_whole(const at::Tensor& whole, const at::Tensor& part, int size, const char* operation);

rail::Dtype dtype_of(const at::Tensor& tensor);
// Also throws if this reduction does not exist for the tensor's elements.
rail::Reduction reduction_of(const ::c10d::ReduceOp& op, const at::Tensor& tensor, const char* operation);

// Returns memory that is only read, in logical order: the tensor's own, or that of a copy that the run keeps.
const void* to_read(RailRun& run, const at::Tensor& tensor, const char* operation);
// Returns memory to write to. If it is not the tensor's own, it is copied back at the end. `contents`: it is read, too.
void* to_write(RailRun& run, const at::Tensor& tensor, bool contents, const char* operation);
// Like to_read(), but of a copy if the tensor shares memory with one of `others`, except for `allowed`.
const void* to_read_apart(RailRun& run, const at::Tensor& tensor, const Tensors& others, const at::Tensor* allowed,
                          const char* operation);

// Returns the `index`-th of equal parts of `bytes` each.
inline const void* part_of(const void* memory, size_t bytes, int index) {
    return static_cast<const char*>(memory) + bytes * static_cast<size_t>(index);
}

inline void* part_of(void* memory, size_t bytes, int index) {
    return static_cast<char*>(memory) + bytes * static_cast<size_t>(index);
}

}  // namespace taskd::comm
