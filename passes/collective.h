#pragma once

#include "ir/op.h"

namespace fusor::passes {

inline bool IsCollective(const ir::Node& node) { return !node.op().pure; }

// Of collectives: a sum has a result for each operand, on any number of ranks;
// others are made for so many.
inline bool IsSumOverRanks(const ir::Node& node) {
  return IsCollective(node) && !node.attrs().Has("ranks");
}

}  // namespace fusor::passes
