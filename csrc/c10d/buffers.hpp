// Private copies: what inner operations write to, so that one that is abandoned can never touch a caller's tensor.
//
// Why: an in-place all-reduce destroys its input, so neither giving it up nor doing it again is possible on the
// caller's own memory. Copies are kept and used again, because fresh memory costs a page fault every 4 KiB.
//
// Does not: copy anything that it can hand over as it is (inputs that are only read).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <vector>

namespace taskd::comm {

using Tensors = std::vector<at::Tensor>;

class Buffers : public std::enable_shared_from_this<Buffers> {
  public:
    // A tensor like `model` on memory of its own, with its contents if `copy`.
    at::Tensor twin(const at::Tensor& model, bool copy);

  private:
    void give_back(at::Tensor bytes);
    at::Tensor take(int64_t bytes);

    std::mutex mutex_;
    Tensors free_;  // byte tensors, smallest first
    int64_t free_bytes_ = 0;
};

// The same memory under a tensor of its own, for plain tensors; else the tensor itself.
at::Tensor alias_of(const at::Tensor& tensor);
// Copies contents between tensors of one shape, on this thread alone where that is possible.
void copy_contents(const at::Tensor& from, const at::Tensor& to);
// Replaces what is not finite by finite numbers.
void make_finite(const at::Tensor& tensor);
void fill_zero(const at::Tensor& tensor);

}  // namespace taskd::comm
