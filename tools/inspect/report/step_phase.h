#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::codegen {

// Which part of a training step a node belongs to.
enum class StepPhase : uint8_t {
  kForward,   // output "loss", running statistics, whatever needs no gradient
  kBackward,  // computes gradients
  kUpdate,    // turns gradients into the next parameters and momentum
};

std::string_view PhaseName(StepPhase phase);  // "forward"

// The phase of each node, by position; all forward in a graph without output
// "loss". A fusion of two phases' work belongs to the earlier one.
std::vector<StepPhase> PhasesOf(const ir::Graph& graph);

}  // namespace fusor::codegen
