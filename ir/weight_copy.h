#pragma once

// Cached cast weights (weight copies): state that stores a weight a second
// time, rounded to a narrower dtype, in the layout that a library op reads.
//
//   %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,64]{..}
//
// Every writer of the weight also writes its copy, and checkpoints store no
// copies. The copy's dtype is the rounding dtype, or a wider one if the target
// cannot multiply in a dtype that narrow.

#include <optional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// Returns e.g. "copy.bf16.ABcd8b16a2b/conv1.weight". The name identifies the
// contents to programs that share state.
std::string WeightCopyName(std::string_view weight, DType rounding,
                           const TensorType& type);

// Parses such a name; nullopt if it is not a copy's name.
struct WeightCopyKind {
  std::string weight;
  DType rounding;
  DType dtype;  // of the copy's elements
};
std::optional<WeightCopyKind> ParseWeightCopyName(std::string_view name);

Attrs WeightCopyAttrs(std::string_view weight, DType rounding);

// Return the weight's name and the rounding dtype of a weight_copy input. Throw
// kGraph for other attributes.
const std::string& CopiedWeight(const Attrs& attrs);
DType CopyRounding(const Attrs& attrs);

}  // namespace fusor::ir
