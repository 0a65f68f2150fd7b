#pragma once

// Every kernel and library call of a plan run alone on random operands and
// compared with the interpreter: says whether generated code and the vendor
// library compute what the graph says, whatever the passes made of the model.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend.h"

namespace fusor::runtime {

struct IsolateOptions {
  uint64_t seed = 0;
  double tolerance = 0;     // of every step; 0: by dtype and reduction length
  bool calls_only = false;  // no kernels
};

// How far the results of a step are from the interpreter's.
struct IsolatedStep {
  size_t step = 0;       // the first of the plan that runs this kernel or call
  int64_t launches = 1;  // steps that do
  std::string what;      // kernel name, or "conv2d by IMPLEMENTATION"
  ir::Location location;
  std::string value;   // the result that is worst
  double max_abs = 0;  // of that result
  double max_rel = 0;  // max_abs / largest magnitude of the expected result
  // In units of the expected element's last place; infinity: no digit in
  // common.
  double max_ulp = 0;
  double tolerance = 0;
  int64_t reduction = 1;  // elements that one element sums up
  // NaN where only one side has it counts as infinitely far.
  double error = 0;  // what is held against the tolerance

  bool ok() const { return error <= tolerance; }
};

// One entry for each distinct kernel and call of the plan, worst ratio of error
// to tolerance first. `graph` is what the plan was made of.
std::vector<IsolatedStep> IsolateSteps(const codegen::Plan& plan,
                                       const ir::Graph& graph, Device& device,
                                       const IsolateOptions& options = {});

// Runs one step of the plan on a tensor for each input of GraphOfStep. Rejects
// kCollective steps.
std::vector<ir::Tensor> RunStepAlone(const codegen::Plan& plan,
                                     const ir::Graph& graph, size_t step,
                                     std::span<const ir::Tensor> inputs,
                                     Device& device);

// The comparison that IsolateSteps makes, for given inputs.
IsolatedStep CompareStep(const codegen::Plan& plan, const ir::Graph& graph,
                         size_t step, std::span<const ir::Tensor> inputs,
                         Device& device, const IsolateOptions& options = {});

// Inputs of a step's graph: floats in [-1, 1), but in [0.25, 1.75) where a
// result would not be finite otherwise: small vectors first, then everything;
// positions in pooling windows as ir::DrawPositions has them. Inputs that are
// views of one buffer hold the same bytes.
std::vector<ir::Tensor> RandomOperands(const codegen::Plan& plan,
                                       const ir::Graph& graph, size_t step,
                                       uint64_t seed);

}  // namespace fusor::runtime
