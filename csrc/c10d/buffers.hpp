// Private copies of tensors. Inner operations write to them, so an abandoned one can never touch a caller's tensor.
//
// Why: an in-place all-reduce destroys its input. On the caller's own memory it could be neither given up nor repeated.
// Buffers are kept and used again, because fresh memory costs a page fault every 4 KiB.
//
// Does not: copy inputs that are only read; they are handed over as they are.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <vector>

namespace taskd::comm {

using Tensors = std::vector<at::Tensor>;

class Buffers : public std::enable_shared_from_this<Buffers> {
  public:
    // Returns a tensor like `model` on memory of its own; if `copy`, with the contents of `model`.
    at::Tensor twin(const at::Tensor& model, bool copy);

  private:
    void give_back(at::Tensor bytes);
    at::Tensor take(int64_t bytes);

    std::mutex mutex_;
    Tensors free_;  // byte tensors, smallest first
    int64_t free_bytes_ = 0;
};

// Returns another tensor object on the same memory if the tensor is plain, otherwise the tensor itself.
at::Tensor alias_of(const at::Tensor& tensor);
// Copies contents between two tensors of one shape, where possible on this thread alone.
void copy_contents(const at::Tensor& from, const at::Tensor& to);
// Replaces NaN and infinity by finite numbers.
void make_finite(const at::Tensor& tensor);
void fill_zero(const at::Tensor& tensor);

}  // namespace taskd::comm
