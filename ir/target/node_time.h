#pragma once

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::passes {

// Kernels and library calls; the rest takes no time.
bool IsCostly(const ir::Node& node);

// How long a node of an optimised graph takes by the target's limits.
double NodeSeconds(const ir::Node& node, const ir::Target& target);

}  // namespace fusor::passes
