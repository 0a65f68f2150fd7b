#pragma once

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::passes {

// Returns true for a library op that the target leaves to a generated kernel
// (ir::kGeneratedAlgorithm): pooling, layout copies.
bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target);

}  // namespace fusor::passes
