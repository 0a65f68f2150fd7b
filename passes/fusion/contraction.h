#pragma once

// Contractions: matmuls and convolutions with 1x1 filters as
//
//   result[d..] = sum over k.. of factor0[d.., k..] * factor1[d.., k..]
//
// with one index map per tensor. Forward, data gradient and weight gradient
// differ only in their maps. A kernel of one contraction may contain
// elementwise nodes that compute its factors (prologue) or read its result
// (epilogue). On a GPU it may also contain column sums: sums of the result, or
// of the epilogue's values, over all dimensions but the result's fastest, such
// as the statistics of batch normalisation, and elementwise nodes that read
// them.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::passes {

struct Contraction {
  const ir::Node* node = nullptr;
  // Dimensions of the result, then those that are summed (`folded`). `maps` has
  // the result and, for a body, all its values.
  IterationDomain domain;
  std::array<ir::IndexMap, 2> factors;  // maps of operands 0 and 1
  ir::IndexMap bias;                    // map of operand 2, if any
  // The factor that changes along the result's fastest dimension, whose vectors
  // are multiplied by scalars of the other factor.
  int column_factor = 1;
  bool contiguous = false;  // whether its elements for a vector are adjacent
  std::vector<const ir::Node*> column_sums;  // of a body, in its order

  int64_t macs() const;
  // Returns the product of the extents that `factor` has and the other has not.
  int64_t FreeExtent(int factor) const;
};

// Returns the contraction of a node. If there is none, returns nullopt and sets
// `reason` to one of a fixed set of phrases.
std::optional<Contraction> ContractionOf(const ir::Node& node,
                                         std::string* reason);

// Returns the node of a body that is a contraction; null if there is none.
const ir::Node* ContractionIn(const ir::Graph& body);

// Returns the contraction of a body with the maps of all its values; nullopt
// and the reason if a value has no map or several. Each output of the body has
// the map of the result or, if there are column sums, that of a column sum.
std::optional<Contraction> AnalyzeContraction(const ir::Graph& body,
                                              std::string* reason);

}  // namespace fusor::passes
