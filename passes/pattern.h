#pragma once

#include <string_view>

#include "ir/graph.h"

namespace fusor::passes {

// For the pattern passes: only they may match ops by name. `node` may be null,
// since a graph input has no producer.
inline bool IsOp(const ir::Node* node, std::string_view name) {
  return node != nullptr && node->op_name() == name;
}

}  // namespace fusor::passes
