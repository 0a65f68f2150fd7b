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
  std::unique_ptr<ir::Graph> graph;  // what was planned
  codegen::LoweredNodes lowered;
  codegen::Plan plan;
};
Planned FuseAndPlan(const ir::Graph& graph,
                    const codegen::TargetCompiler& compiler,
                    const codegen::PlanOptions& options = {});

// The lowered kernels of the graph's fusion nodes.
codegen::LoweredNodes LowerAll(const ir::Graph& graph,
                               const ir::Target& target);

// Runs a plan on the host, every buffer at its planned place and all memory
// garbage at first: kernels by InterpretKernel, calls by the interpreter's
// rules in typed mode. One tensor per output, of its buffer's type.
std::vector<ir::Tensor> RunPlan(const codegen::Plan& plan,
                                std::span<const ir::Tensor> inputs);

}  // namespace fusor::test
