// What differs between the versions of torch that this is compiled for.
//
// Why: a c10d backend is compiled for one minor version of torch. Each difference stands here once, found by the
// compiler where it can be, so that the other files read as if there were one torch.
#pragma once

#include <algorithm>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace taskd::comm {

namespace versions {

template <typename Types>
constexpr auto type_of_coalesced_reduce_scatter(int) -> decltype(Types::REDUCE_SCATTER_TENSOR_COALESCED) {
    return Types::REDUCE_SCATTER_TENSOR_COALESCED;
}

template <typename Types>
constexpr Types type_of_coalesced_reduce_scatter(...) {
    return Types::COALESCED;
}

}  // namespace versions

// torch 2.11 has no type of its own for it.
inline constexpr ::c10d::OpType kReduceScatterTensorCoalesced =
    versions::type_of_coalesced_reduce_scatter<::c10d::OpType>(0);
inline constexpr ::c10d::OpType kLastType = std::max(::c10d::OpType::_ALLREDUCE_SPARSE, kReduceScatterTensorCoalesced);

}  // namespace taskd::comm
