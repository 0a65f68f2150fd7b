#pragma once

#include <optional>

#include "ir/graph.h"

namespace fusor::passes {

// The value that every element of `value` has, where a constant with one value
// says so and its dtype can represent it; nullopt for everything else.
std::optional<double> SplatOf(const ir::Value& value);

// The number in such a constant's attributes, whether its dtype can represent
// it or not: all that ops that only move elements need.
std::optional<double> SplatAttribute(const ir::Value& value);

// The attributes of a `constant` of that type whose elements are all `x`.
ir::Attrs SplatAttrs(const ir::TensorType& type, double x);

// What `node` computes, if its operands are constants and every element of its
// result is the same: arithmetic is folded only where operands and result are
// representable, so that it is right whether results are rounded or not. NaN is
// never folded.
std::optional<double> FoldToSplat(const ir::Node& node);

}  // namespace fusor::passes
