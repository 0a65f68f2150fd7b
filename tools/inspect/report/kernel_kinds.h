#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::codegen {

// Generated kernels of one phase of a step, with or without reductions.
struct KernelCount {
  std::string what;  // "backward, with reductions"
  int64_t kernels = 0;
  int64_t ops = 0;       // in all kernels together
  int64_t most_ops = 0;  // in one kernel
};

// Counts the fusions of an optimised graph, forward first.
std::vector<KernelCount> CountKernels(const ir::Graph& graph);

}  // namespace fusor::codegen
