#pragma once

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::passes {

// True for a library op that the target leaves to a generated kernel
// (ir::kGeneratedAlgorithm): pooling, copies between layouts.
bool IsGenerated(const ir::Node& node, const ir::TargetQueries& target);

}  // namespace fusor::passes
