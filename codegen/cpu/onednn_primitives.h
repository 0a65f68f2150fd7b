#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/location.h"
#include "ir/tensor_type.h"

namespace fusor::cpu {

// Create oneDNN primitive descriptors for the IR's library ops. Memory descs
// may be `any`. The result is nullopt if oneDNN has no implementation.

// Algorithm of a 1x1 convolution of stride 1 without padding that describes
// each image to oneDNN as one row of pixels, which is the same memory. oneDNN's
// bf16 weight gradient transposes row by row, so one long row is much cheaper.
inline constexpr char kFlat[] = "direct-flat";
bool CanBeFlat(const ir::TensorType& weight, const ir::Attrs& attrs);
// Returns [N,C,H,W] as [N,C,1,H*W], in the same layout.
ir::TensorType Flattened(ir::TensorType activation);

struct ConvDescs {
  dnnl::memory::desc x, weight, bias, y;  // bias: zero desc if there is none
};

// `algorithm`: "winograd", "direct", kFlat or "" for oneDNN's choice.
std::optional<dnnl::convolution_forward::primitive_desc> ConvForward(
    const ConvDescs& descs, const ir::Attrs& attrs,
    const std::string& algorithm);
std::optional<dnnl::convolution_backward_data::primitive_desc> ConvGradInput(
    const ConvDescs& descs, const ir::Attrs& attrs,
    const std::string& algorithm);
std::optional<dnnl::convolution_backward_weights::primitive_desc>
ConvGradWeight(const ConvDescs& descs, const ir::Attrs& attrs,
               const std::string& algorithm);

std::optional<dnnl::pooling_forward::primitive_desc> PoolForward(
    const dnnl::memory::desc& x, const dnnl::memory::desc& y,
    const ir::Attrs& attrs, bool max);
std::optional<dnnl::pooling_backward::primitive_desc> PoolBackward(
    const dnnl::memory::desc& dx, const dnnl::memory::desc& dy,
    const ir::Attrs& attrs, bool max);

std::optional<dnnl::matmul::primitive_desc> Matmul(const ir::TensorType& a,
                                                   const ir::TensorType& b,
                                                   const ir::TensorType& c,
                                                   const ir::Attrs& attrs);

std::optional<dnnl::reorder::primitive_desc> Reorder(
    const dnnl::memory::desc& from, const dnnl::memory::desc& to);

// Throws kGraph, naming the op and its types, if an image has more pixels than
// an int holds, which oneDNN counts them in. Only types of rank 4 are images.
void CheckImageSizes(std::string_view op,
                     const std::vector<ir::TensorType>& types,
                     const ir::Location& location = {});

// Returns the [O,I,KH,KW] weight in the shape that oneDNN requires for groups,
// [G,O/G,I,KH,KW], in the same memory; unchanged for one group. REQUIRES: a
// tile of O divides O/G, or O/G is 1.
ir::TensorType GroupedWeight(const ir::TensorType& weight, int64_t groups);

// The inverse: returns the layout of an [O,I,KH,KW] weight in the memory of
// `desc`, which has that shape or the one for groups; nullopt if there is none.
std::optional<ir::Layout> ToWeightLayout(const dnnl::memory::desc& desc);

}  // namespace fusor::cpu
