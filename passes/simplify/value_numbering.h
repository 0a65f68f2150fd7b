#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// Finds nodes that compute the same value: equal op, attributes, operands and
// result types. Operands may be swapped if the op commutes exactly. Impure
// nodes and fusions equal no other node.
class ValueNumbering {
 public:
  // Returns an equal node inserted earlier, otherwise inserts and returns
  // `node`. The nodes must outlive the table and keep their operands.
  ir::Node* FindOrInsert(ir::Node* node);

 private:
  std::unordered_map<uint64_t, std::vector<ir::Node*>> nodes_;  // by hash
};

}  // namespace fusor::passes
