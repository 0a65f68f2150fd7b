#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "ir/tensor_type.h"

namespace fusor::cpu {

// Returns the process's oneDNN CPU engine.
const dnnl::engine& Engine();

// Returns oneDNN's dtype; nullopt if oneDNN's CPU engine lacks it (f64, i64).
std::optional<dnnl::memory::data_type> ToDnnl(ir::DType dtype);

// Returns oneDNN's description of a tensor of this type. REQUIRES:
// ToDnnl(type.dtype), rank 1 to 12.
dnnl::memory::desc ToDesc(const ir::TensorType& type);

// Returns a desc whose layout oneDNN chooses.
dnnl::memory::desc AnyDesc(const ir::TensorType& type);

// Returns the desc's layout; nullopt if an ir::Layout cannot describe it
// (padding, compensation, or not a blocked format).
std::optional<ir::Layout> ToLayout(const dnnl::memory::desc& desc);

// Returns the channel-blocked layout (nChw16c for block 16) if the rank is 4
// and the block divides the channels, else row-major.
ir::Layout BlockedLayout(const ir::Shape& shape, int64_t block);

// Returns the layout of images and filters with channels last, [N, H, W, C] or
// [O, KH, KW, I].
const ir::Layout& ChannelsLast();

}  // namespace fusor::cpu
