#pragma once

#include <memory>

#include "ir/graph.h"

namespace fusor::test {

enum class Gradients {
  kComputed,  // matmuls of data
  kData,      // inputs
  kShared,    // one matmul for all parameters, of different shapes
};

// Returns momentum updates of a few parameters of odd sizes, not yet fused.
std::unique_ptr<ir::Graph> UpdateGraph(Gradients gradients);

}  // namespace fusor::test
