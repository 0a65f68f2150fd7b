#pragma once

#include <optional>

#include "ir/graph.h"

namespace fusor::passes {

// Returns the value of all elements of `value` if it is a broadcast constant
// (one number for all elements) that its dtype can represent; otherwise
// nullopt.
std::optional<double> SplatOf(const ir::Value& value);

// Like SplatOf, but returns the number in the attributes even if the dtype
// cannot represent it. Sufficient for ops that only move elements.
std::optional<double> SplatAttribute(const ir::Value& value);

// Returns the attributes of a `constant` of `type` whose elements are all `x`.
ir::Attrs SplatAttrs(const ir::TensorType& type, double x);

// Returns the result of `node` if its operands are constants and all elements
// of the result are equal. Folds arithmetic only if operands and result are
// representable, so folding is exact whether results are rounded or not. Never
// folds NaN.
std::optional<double> FoldToSplat(const ir::Node& node);

// Returns the attributes of the `constant` that equals the result of `node`, if
// that only moves elements of constants and has at most 4096 elements.
std::optional<ir::Attrs> FoldToElements(const ir::Node& node);

}  // namespace fusor::passes
