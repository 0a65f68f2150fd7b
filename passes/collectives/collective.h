#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/op.h"

namespace fusor::passes {

// Returns true for an all_reduce or reduce_scatter of gradients.
inline bool IsSumOverRanks(const ir::Node& node) {
  return node.kind() == ir::OpKind::kAllReduce ||
         node.kind() == ir::OpKind::kReduceScatter;
}

// Returns true for an all_gather of parameter shards with their values before
// this step's update, possibly cast. It depends on no other computation.
bool GathersParameters(const ir::Graph& graph, const ir::Node& node);

// Joins single-operand collectives of equal op and dtype into one, at the
// position of the last. REQUIRES: no result is used before that position.
ir::Node* JoinCollectives(ir::Graph& graph,
                          const std::vector<ir::Node*>& nodes);

}  // namespace fusor::passes
