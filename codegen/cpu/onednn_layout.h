#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "ir/tensor_type.h"

namespace fusor::cpu {

// The process's oneDNN CPU engine.
const dnnl::engine& Engine();

// nullopt for dtypes that oneDNN lacks (f64, i64) on the CPU.
std::optional<dnnl::memory::data_type> ToDnnl(ir::DType dtype);

// The same bytes as oneDNN describes them. REQUIRES: ToDnnl(type.dtype), rank
// 1 to 12.
dnnl::memory::desc ToDesc(const ir::TensorType& type);

// A desc whose layout oneDNN shall choose.
dnnl::memory::desc AnyDesc(const ir::TensorType& type);

// nullopt where an ir::Layout cannot say it: padding, compensation, or no
// blocked format at all.
std::optional<ir::Layout> ToLayout(const dnnl::memory::desc& desc);

// nChw16c for block 16, for tensors of rank 4 whose channels the block divides;
// else row-major.
ir::Layout BlockedLayout(const ir::Shape& shape, int64_t block);

}  // namespace fusor::cpu
