// See rail_tensors.hpp.
#include "c10d/rail_tensors.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdint>
#include <optional>

#include "rail/reduce/reduce.hpp"

namespace taskd::comm {

namespace {

bool in_place(const at::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Returns contiguous memory on the CPU for the elements themselves (not conjugated, not negated).
at::Tensor flat_room(const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor flat_copy(const at::Tensor& tensor) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor copy = flat_room(tensor);
    const_cast<at::Tensor&>(copy).copy_(tensor);
    return copy;
}

// Returns the memory between a tensor's first and last element.
std::pair<uintptr_t, uintptr_t> extent_of(const at::Tensor& tensor) {
    if (tensor.numel() == 0)
        return {0, 0};
    int64_t last = 0;
    for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension)
        last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
    const auto first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    return {first, first + static_cast<uintptr_t>(last + 1) * tensor.element_size()};
}

bool shares_memory(const at::Tensor& one, const at::Tensor& other) {
    const auto [first, last] = extent_of(one);
    const auto [other_first, other_last] = extent_of(other);
    return first < other_last && other_first < last;
}

std::optional<rail::Dtype> arithmetic_of(at::ScalarType type) {
    switch (type) {
        case at::kBool:
            return rail::Dtype::kBool;
        case at::kChar:
            return rail::Dtype::kInt8;
        case at::kByte:
            return rail::Dtype::kUint8;
        case at::kShort:
            return rail::Dtype::kInt16;
        case at::kInt:
            return rail::Dtype::kInt32;
        case at::kLong:
            return rail::Dtype::kInt64;
        case at::kHalf:
            return rail::Dtype::kFloat16;
        case at::kBFloat16:
            return rail::Dtype::kBfloat16;
        case at::kFloat:
            return rail::Dtype::kFloat32;
        case at::kDouble:
            return rail::Dtype::kFloat64;
        case at::kComplexFloat:
            return rail::Dtype::kComplex64;
        case at::kComplexDouble:
            return rail::Dtype::kComplex128;
        default:
            return std::nullopt;
    }
}

std::optional<rail::Reduction> reduction_named(::c10d::ReduceOp::RedOpType op) {
    switch (op) {
        case ::c10d::ReduceOp::SUM:
            return rail::Reduction::kSum;
        case ::c10d::ReduceOp::AVG:
            return rail::Reduction::kAverage;
        case ::c10d::ReduceOp::PRODUCT:
            return rail::Reduction::kProduct;
        case ::c10d::ReduceOp::MIN:
            return rail::Reduction::kMin;
        case ::c10d::ReduceOp::MAX:
            return rail::Reduction::kMax;
        case ::c10d::ReduceOp::BAND:
            return rail::Reduction::kBitAnd;
        case ::c10d::ReduceOp::BOR:
            return rail::Reduction::kBitOr;
        case ::c10d::ReduceOp::BXOR:
            return rail::Reduction::kBitXor;
        default:
            return std::nullopt;
    }
}

}  // namespace

void check_memory(const at::Tensor& tensor, const char* operation) {
    TORCH_CHECK(tensor.defined(), operation, " was given a tensor that is undefined.");
    TORCH_CHECK(tensor.layout() == at::kStrided, operation, " takes dense tensors, but was given a ", tensor.layout(),
                " one; call .to_dense(), or all_reduce it.");
    TORCH_CHECK(!tensor.is_meta(), operation, " was given a tensor without memory (on the device meta).");
    TORCH_CHECK(!tensor.is_quantized(), operation, " does not take quantized tensors, whose scale would be left ",
                "behind; call .dequantize(), or send .int_repr() and the scale.");
    const auto needed = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size() + tensor.nbytes();
    TORCH_CHECK(!tensor.is_contiguous() || tensor.numel() == 0 || tensor.storage().nbytes() >= needed, operation,
                " was given a tensor whose memory was given back (its storage has ", tensor.storage().nbytes(),
                " bytes, it needs ", needed, "); gather it first.");
}

at::Tensor& only(Tensors& tensors, const char* operation) {
    TORCH_CHECK(tensors.size() == 1, operation, " takes one tensor, but was given ", tensors.size(),
                "; call it once for each, or its coalesced form.");
    return tensors[0];
}

Tensors& only(std::vector<Tensors>& lists, const char* operation) {
    TORCH_CHECK(lists.size() == 1, operation, " takes one list of tensors, but was given ", lists.size(), ".");
    return lists[0];
}

void check_each(const Tensors& tensors, int size, const at::Tensor& model, const char* operation) {
    TORCH_CHECK(tensors.size() == static_cast<size_t>(size), operation, ": a list of ", tensors.size(),
                " tensors does not fit a group of ", size, " ranks; give one for each.");
    for (size_t i = 0; i < tensors.size(); ++i) {
        TORCH_CHECK(tensors[i].scalar_type() == model.scalar_type(), operation, ": invalid tensor type at index ", i,
                    " (expected ", model.scalar_type(), ", got ", tensors[i].scalar_type(), ").");
        TORCH_CHECK(tensors[i].numel() == model.numel(), operation, ": invalid tensor size at index ", i, " (expected ",
                    model.sizes(), ", got ", tensors[i].sizes(), "); all ranks' tensors have as many elements.");
    }
}

void check_whole(const at::Tensor& whole, const at::Tensor& part, int size, const char* operation) {
    TORCH_CHECK(whole.scalar_type() == part.scalar_type(), operation, ": invalid tensor type (", whole.scalar_type(),
                " and ", part.scalar_type(), "); input and output have one type.");
    TORCH_CHECK(whole.numel() == part.numel() * size, operation, ": invalid tensor size (", whole.sizes(), " and ",
                part.sizes(), "); one must have ", size, " times the elements of the other.");
}

rail::Dtype dtype_of(const at::Tensor& tensor) {
    return arithmetic_of(tensor.scalar_type()).value_or(rail::Dtype::kByte);
}

rail::Reduction reduction_of(const ::c10d::ReduceOp& op, const at::Tensor& tensor, const char* operation) {
    const std::optional<rail::Reduction> reduction = reduction_named(op.op_);
    TORCH_CHECK(reduction, operation, ": this ReduceOp is NCCL's alone; multiply the tensor before and use SUM.");
    const std::optional<rail::Dtype> dtype = arithmetic_of(tensor.scalar_type());
    TORCH_CHECK(dtype, operation, ": elements of type ", tensor.scalar_type(),
                " cannot be reduced; convert the tensor, with .float() for instance.");
    TORCH_CHECK(rail::can_reduce(*dtype, *reduction), operation, ": there is no ", rail::name_of(*reduction), " of ",
                rail::name_of(*dtype), "; convert the tensor or choose another ReduceOp.");
    return *reduction;
}

const void* to_read(RailRun& run, const at::Tensor& tensor, const char* operation) {
    check_memory(tensor, operation);
    const at::Tensor memory = in_place(tensor) ? tensor : flat_copy(tensor);
    const void* data = memory.const_data_ptr();
    run.keep(memory);
    return data;
}

void* to_write(RailRun& run, const at::Tensor& tensor, bool contents, const char* operation) {
    check_memory(tensor, operation);
    if (in_place(tensor)) {
        run.keep(tensor);
        return tensor.mutable_data_ptr();
    }
    at::assert_no_internal_overlap(tensor);
    at::Tensor copy = contents ? flat_copy(tensor) : flat_room(tensor);
    void* data = copy.mutable_data_ptr();
    run.copy_back(std::move(copy), tensor);
    return data;
}

const void* to_read_apart(RailRun& run, const at::Tensor& tensor, const Tensors& others, const at::Tensor* allowed,
                          const char* operation) {
    check_memory(tensor, operation);
    for (const at::Tensor& other : others) {
        // The input may be the very place of its own result: that is what "in place" means.
        const bool same = &other == allowed && other.const_data_ptr() == tensor.const_data_ptr();
        if (same || !shares_memory(tensor, other))
            continue;
        const at::Tensor copy = flat_copy(tensor);
        run.keep(copy);
        return copy.const_data_ptr();
    }
    return to_read(run, tensor, operation);
}

}  // namespace taskd::comm
