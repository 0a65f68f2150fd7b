#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// Finds nodes that compute the same: equal op, attributes, operands and result
// types, operands in either order where the op commutes exactly. Impure nodes
// and fusions equal nothing.
class ValueNumbering {
 public:
  // A node like `node` inserted before, else `node` itself, now inserted. The
  // nodes must outlive the table and keep their operands.
  ir::Node* FindOrInsert(ir::Node* node);

 private:
  std::unordered_map<uint64_t, std::vector<ir::Node*>> nodes_;  // by hash
};

}  // namespace fusor::passes
