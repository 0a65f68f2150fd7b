#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/op.h"

namespace fusor::passes {

inline bool IsCollective(const ir::Node& node) { return !node.op().pure; }

// Of gradients, whole or this rank's part. Other collectives, which gather, say
// of how many ranks.
inline bool IsSumOverRanks(const ir::Node& node) {
  return IsCollective(node) && !node.attrs().Has("ranks");
}

// Of what ranks have at the beginning of a step: parts of parameters, as they
// are or converted. It waits for nothing.
bool GathersParameters(const ir::Graph& graph, const ir::Node& node);

// Makes one collective of several of one op and dtype, and of one operand each,
// in the place of the last. REQUIRES: no result is used before that.
ir::Node* JoinCollectives(ir::Graph& graph,
                          const std::vector<ir::Node*>& nodes);

}  // namespace fusor::passes
