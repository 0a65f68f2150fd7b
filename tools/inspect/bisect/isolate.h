#pragma once

// Runs every kernel and library call of a plan alone on random operands and
// compares it with the interpreter. This tests generated code and vendor
// libraries, independently of the passes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend.h"

namespace fusor::inspect {

struct IsolateOptions {
  uint64_t seed = 0;
  double tolerance = 0;     // 0: from dtype and reduction length
  bool calls_only = false;  // skip kernels
  // Distinct kernels and calls to check: those whose number in plan order is
  // `part` modulo `parts`.
  size_t part = 0;
  size_t parts = 1;
  // Threads that interpret steps, as memory permits; 0: one per core.
  int threads = 0;
};

// The error of a step's results against the interpreter.
struct IsolatedStep {
  size_t step = 0;       // the first in the plan that runs this kernel or call
  int64_t launches = 1;  // number of steps that run it
  std::string what;      // kernel name, or "conv2d by IMPLEMENTATION"
  ir::Location location;
  std::string value;   // the worst result
  double max_abs = 0;  // of that result
  double max_rel = 0;  // max_abs / largest magnitude of the expected result
  // Greatest error in units of the last place of the expected element.
  // Infinity: no digit in common.
  double max_ulp = 0;
  double tolerance = 0;
  int64_t reduction = 1;  // terms summed per output element
  // Compared with the tolerance. A NaN on one side only counts as infinity.
  double error = 0;

  bool ok() const { return error <= tolerance; }
};

// Returns one entry per distinct kernel and call of the plan, ordered by
// descending error / tolerance. `graph`: the plan's. Interprets several steps
// at once and runs them on the device one by one.
std::vector<IsolatedStep> IsolateSteps(const codegen::Plan& plan,
                                       const ir::Graph& graph,
                                       runtime::Device& device,
                                       const IsolateOptions& options = {});

// Runs one step of the plan, given one tensor per input of GraphOfStep, and
// returns its results. Throws kGraph for kCollective steps.
std::vector<ir::Tensor> RunStepAlone(const codegen::Plan& plan,
                                     const ir::Graph& graph, size_t step,
                                     std::span<const ir::Tensor> inputs,
                                     runtime::Device& device);

// Compares one step as IsolateSteps does, for given inputs.
IsolatedStep CompareStep(const codegen::Plan& plan, const ir::Graph& graph,
                         size_t step, std::span<const ir::Tensor> inputs,
                         runtime::Device& device,
                         const IsolateOptions& options = {});

// Returns random inputs for a step's graph. Floats are in [-1, 1). If a result
// is then not finite, tensors of rank 0 and 1 are drawn from [0.25, 1.75), and
// if need be all tensors. Pooling positions come from ir::DrawPositions. Inputs
// that are views of one buffer hold the same bytes.
std::vector<ir::Tensor> RandomOperands(const codegen::Plan& plan,
                                       const ir::Graph& graph, size_t step,
                                       uint64_t seed);

}  // namespace fusor::inspect
