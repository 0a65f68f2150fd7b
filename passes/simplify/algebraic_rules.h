#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// The replacement of a node's result: an existing value, or the result of a
// node to be created, of the same type.
struct Replacement {
  ir::Value* value = nullptr;

  // Op of the node to be created.
  ir::OpKind op = {};
  std::vector<ir::Value*> inputs;
  ir::Attrs attrs;
};

// Returns the first local rule's replacement for `node`, given its operands and
// their producers; nullopt if no rule matches. Every rule keeps the result
// bit-identical, -0 and infinities included, whether results are rounded or not
// (NaN stays NaN). Every rule shrinks the graph or shortens a chain, so
// rewriting terminates.
std::optional<Replacement> FindReplacement(const ir::Node& node);

}  // namespace fusor::passes
