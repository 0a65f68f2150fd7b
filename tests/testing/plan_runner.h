#pragma once

#include <memory>
#include <span>
#include <vector>

#include "codegen/plan/plan.h"
#include "codegen/plan/plan_builder.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Fuses the graph and its updates, lowers the fusions and plans the graph for
// `compiler`.
struct Planned {
  std::unique_ptr<ir::Graph> graph;  // the planned graph
  codegen::LoweredNodes lowered;
  codegen::Plan plan;
};
Planned FuseAndPlan(const ir::Graph& graph,
                    const codegen::TargetCompiler& compiler,
                    const codegen::PlanOptions& options = {});

// Lowers the graph's fusion nodes to kernels.
codegen::LoweredNodes LowerAll(const ir::Graph& graph,
                               const ir::Target& target);

// Runs a plan on the host with every buffer at its planned offset. All memory
// contains garbage at first. Interprets kernels with InterpretKernel, and
// library calls in typed mode. Returns one tensor per output, of its buffer's
// type.
std::vector<ir::Tensor> RunPlan(const codegen::Plan& plan,
                                std::span<const ir::Tensor> inputs);

}  // namespace fusor::test
