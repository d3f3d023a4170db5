// See buffers.hpp.
#include "c10d/buffers.hpp"

#include <algorithm>
#include <cstring>

namespace taskd::comm {

namespace {

constexpr size_t kMostBuffersKept = 8;
constexpr int64_t kMostBytesKept = int64_t{256} << 20;
constexpr int64_t kWorthKeeping = 64 << 10;  // below this size the allocator is as quick
constexpr int64_t kMostWaste = 4;            // a buffer serves requests of at least a quarter of its size

bool plain(const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
           !tensor.is_neg() && !tensor.is_quantized();
}

}  // namespace

at::Tensor Buffers::take(int64_t bytes) {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto enough = [](const at::Tensor& buffer, int64_t wanted) { return buffer.numel() < wanted; };
        const auto place = std::lower_bound(free_.begin(), free_.end(), bytes, enough);
        if (place != free_.end() && place->numel() <= bytes * kMostWaste) {
            at::Tensor taken = std::move(*place);
            free_.erase(place);
            free_bytes_ -= taken.numel();
            return taken;
        }
    }
    return at::empty({bytes}, at::kByte);
}

void Buffers::give_back(at::Tensor bytes) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (free_bytes_ + bytes.numel() > kMostBytesKept)
        return;
    free_bytes_ += bytes.numel();
    const auto smaller = [](const at::Tensor& one, const at::Tensor& other) { return one.numel() < other.numel(); };
    if (free_.size() >= kMostBuffersKept) {
        free_bytes_ -= free_.front().numel();
        free_.erase(free_.begin());  // the smallest, because it is the cheapest to make again
    }
    free_.insert(std::lower_bound(free_.begin(), free_.end(), bytes, smaller), bytes);
}

at::Tensor Buffers::twin(const at::Tensor& model, bool copy) {
    const auto bytes = static_cast<int64_t>(model.layout() == at::kStrided ? model.nbytes() : 0);
    at::Tensor twin;
    if (plain(model) && bytes >= kWorthKeeping) {
        const at::Tensor memory = take(bytes);
        auto release = [pool = weak_from_this(), memory](void*) mutable {
            if (const auto owner = pool.lock())
                owner->give_back(std::move(memory));
        };
        twin =
            at::from_blob(memory.data_ptr(), model.sizes(), std::move(release), model.options().requires_grad(false));
    } else if (model.layout() == at::kStrided) {
        twin = at::empty_like(model, model.options().requires_grad(false));
    } else {
        return model.detach().clone();
    }
    if (copy)
        copy_contents(model, twin);
    return twin;
}

at::Tensor alias_of(const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || tensor.key_set().has(c10::DispatchKey::Python))
        return tensor;
    return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                            /*allow_tensor_metadata_change=*/false));
}

void copy_contents(const at::Tensor& from, const at::Tensor& to) {
    // at::Tensor::copy_() would start a team of threads for every thread of the pool.
    if (plain(from) && plain(to) && from.scalar_type() == to.scalar_type() && from.nbytes() == to.nbytes()) {
        if (from.nbytes() > 0)
            std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
        return;
    }
    to.copy_(from);
}

void make_finite(const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || !(tensor.is_floating_point() || tensor.is_complex()))
        return;
    const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
    at::nan_to_num_(const_cast<at::Tensor&>(real));
}

void fill_zero(const at::Tensor& tensor) {
    tensor.zero_();
}

}  // namespace taskd::comm
