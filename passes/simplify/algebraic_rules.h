#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// What may stand for the result of a node: an existing value, or the result of
// a node yet to be made, of the same type.
struct Replacement {
  ir::Value* value = nullptr;

  std::string_view op;  // empty where there is a value
  std::vector<ir::Value*> inputs;
  ir::Attrs attrs;
};

// The first local rule that `node`, its operands and their producers match;
// nullopt when none does. Every rule keeps each bit of the result, whether
// results are rounded or not, -0 and infinities included (NaN stays NaN), and
// makes the graph smaller or a chain shorter, so that rewriting ends.
std::optional<Replacement> FindReplacement(const ir::Node& node);

}  // namespace fusor::passes
