#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace fusor::ir {

// Checks the rules below. Throws kGraph, naming the node, its location and the
// broken rule.
//
//   - Every operand and output is a value of this graph and is defined before
//     its use; operand lists and use lists agree.
//   - Every node has exactly the attributes of its op, each of its type, and
//     its results have the dtypes and shapes that the op infers.
//   - All types are valid (CheckType) and layouts obey the op's LayoutRule.
//     kSame: results have the inferred layouts, and operands of equal rank
//     share one layout, except in variadic ops (all_reduce, fusion).
//     kRowMajor: all operands and results are row-major. kOrdered: none has
//     tiles. kChosen and kMapped: any valid layout, unless a `layout` attribute
//     gives it.
//   - Value names are unique, and so are the names of named outputs.
//   - An output that names an input as its alias has the input's type; no input
//     is the alias of two outputs.
//   - A weight copy names a parameter of its shape.
//   - No two `random` nodes, inside fusions or not, have the same site.
//   - A fusion's body obeys these rules, matches the types of the node's
//     operands and results, contains only pure ops without bodies, and has only
//     plain data inputs.
void Verify(const Graph& graph);

// The first broken rule, for callers that can map nodes and outputs to
// positions in a file.
struct Violation {
  std::string rule;            // Verify's message
  const Node* node = nullptr;  // may be in a body
  int output = -1;             // index, if there is no node
};
std::optional<Violation> FindViolation(const Graph& graph);

}  // namespace fusor::ir
