#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace fusor::inspect {

// The part of a training step that a node belongs to.
enum class StepPhase : uint8_t {
  kForward,   // output "loss", running statistics, all that needs no gradient
  kBackward,  // computes gradients
  kUpdate,    // computes the next parameters and momentum from gradients
};

std::string_view PhaseName(StepPhase phase);  // "forward"

// Returns the phase of each node, by position. All are forward in a graph
// without output "loss". A fusion of two phases belongs to the earlier one.
std::vector<StepPhase> PhasesOf(const ir::Graph& graph);

}  // namespace fusor::inspect
