#pragma once

// Weight copies: state that holds a weight a second time, rounded to a narrower
// dtype, in the layout in which a library op reads it.
//
//   %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,64]{..}
//
// A copy is what its weight says: whoever writes the one writes the other, and
// no checkpoint stores it. Its own dtype is that of the rounding, or a wider
// one where the target multiplies in no dtype as narrow.

#include <optional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace fusor::ir {

// "copy.bf16.ABcd8b16a2b/conv1.weight": programs that share state know the copy
// by what it holds.
std::string WeightCopyName(std::string_view weight, DType rounding,
                           const TensorType& type);

// What the name says; nullopt for one that is no copy's.
struct WeightCopyKind {
  std::string weight;
  DType rounding;
  DType dtype;  // of the copy's elements
};
std::optional<WeightCopyKind> ParseWeightCopyName(std::string_view name);

Attrs WeightCopyAttrs(std::string_view weight, DType rounding);

// True for a node that puts its operand into another layout, or dtype: what
// copies are made by.
bool IsCopy(const Node& node);

// Of an input of role weight_copy; throw kGraph for other attributes.
const std::string& CopiedWeight(const Attrs& attrs);
DType CopyRounding(const Attrs& attrs);

}  // namespace fusor::ir
