#pragma once

#include "ir/op.h"

namespace fusor::passes {

inline bool IsCollective(const ir::Node& node) { return !node.op().pure; }

// Of gradients, whole or this rank's part. Other collectives, which gather, say
// of how many ranks.
inline bool IsSumOverRanks(const ir::Node& node) {
  return IsCollective(node) && !node.attrs().Has("ranks");
}

}  // namespace fusor::passes
