#pragma once

#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::passes {

// True for fusions and library ops; NodeSeconds is 0 for all other nodes.
bool IsCostly(const ir::Node& node);

// Estimates the seconds of an optimised graph's node by a roofline model.
double NodeSeconds(const ir::Node& node, const ir::Target& target);

}  // namespace fusor::passes
