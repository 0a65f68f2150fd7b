#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace fusor::ir {

// Throws kGraph, naming the node, its location and the broken rule, unless
//
//   - every operand and output is a value of this graph, defined before its
//     use, and operand lists and use lists agree;
//   - every node has exactly the attributes of its op, each of its type, and
//     its results have the dtypes and shapes that the op infers;
//   - all types are valid (CheckType), and layouts keep the op's LayoutRule:
//     kSame ops have the layouts that the op infers, and all operands of equal
//     rank one layout (but for all_reduce, whose operands are independent);
//     kRowMajor ops are row-major throughout; a `layout` attribute is obeyed;
//     with kChosen and kMapped any valid layout will do;
//   - value names are unique, and so are the names of named outputs;
//   - an output that names an input as its alias has the input's type, and no
//     input is the alias of two;
//   - no two `random` nodes, inside fusions or not, have the same site;
//   - the body of a fusion keeps these rules, corresponds type by type to the
//     node's operands and results, and holds only pure ops without bodies, and
//     inputs of role data.
void Verify(const Graph& graph);

// The first broken rule, for who knows where nodes and outputs were written.
struct Violation {
  std::string rule;            // as Verify says it
  const Node* node = nullptr;  // may be in a body
  int output = -1;             // of the graph, where there is no node
};
std::optional<Violation> FindViolation(const Graph& graph);

}  // namespace fusor::ir
