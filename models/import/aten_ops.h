#pragma once

// Operators of PyTorch's ATen library as functions of Layers and Builder.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/import/aten_call.h"

namespace fusor::models {

// How a result relates to the memory of argument "self".
enum class AtenMemory : uint8_t {
  kNew,
  kView,       // a part of it, or all of it
  kMaybeView,  // a view or a copy, depending on strides
};

struct AtenOp {
  std::string_view name;  // "conv2d.default"; in-place variants share the row
  std::vector<ir::Value*> (*build)(AtenCall& call);
  AtenMemory memory = AtenMemory::kNew;
  // For views: returns `base`, the value of "self", with result `index`
  // replaced by `part`. Null: the result can't be written in place.
  ir::Value* (*write)(AtenCall& call, ir::Value* base, ir::Value* part,
                      size_t index) = nullptr;
};

// One table per family; FindAtenOp searches them all.
std::span<const AtenOp> AtenElementwiseOps();
std::span<const AtenOp> AtenConvolutionOps();
std::span<const AtenOp> AtenFunctionOps();  // of mathematics, order
std::span<const AtenOp> AtenIndexedOps();   // access by index
std::span<const AtenOp> AtenLayerOps();     // with weights, reductions
std::span<const AtenOp> AtenLossOps();
std::span<const AtenOp> AtenPoolOps();
std::span<const AtenOp> AtenRearrangedOps();
std::span<const AtenOp> AtenRecurrentOps();
std::span<const AtenOp> AtenResamplingOps();
std::span<const AtenOp> AtenShapeOps();   // views, data movement
std::span<const AtenOp> AtenSourceOps();  // constants, random numbers
std::span<const AtenOp> AtenVectorOps();  // norms, products, order statistics

// Pads by elements of "self", in mode reflect, replicate or circular.
std::vector<ir::Value*> AtenPadByElements(AtenCall& call,
                                          const std::string& mode);

// Returns a diagonal of the last two dimensions as the last one. Throws if it
// has no elements.
ir::Value* LastDiagonal(AtenCall& call, ir::Value* x, int64_t offset);
// Repeats each element along `dim`, as repeat_interleave.
ir::Value* RepeatElements(AtenCall& call, ir::Value* x, int64_t dim,
                          int64_t repeats);

// Returns null if the operator is unknown.
const AtenOp* FindAtenOp(std::string_view name);
// The same for calls with complex arguments or results. Complex tensors are
// real ones with a last dimension of 2, as in view_as_real.
const AtenOp* FindComplexAtenOp(std::string_view name);

}  // namespace fusor::models
