#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "ir/graph.h"
#include "ir/op.h"
#include "passes/passes.h"

namespace fusor::passes {

// Returns the precision rule from the user's lists or of a node that keeps its
// precision, otherwise the op registry's. The exponentials of sigmoid, SiLU and
// the gradient of erf follow their neighbours, as tanh and erf do.
ir::PrecisionRule RuleOf(const ir::Node& node, const PrecisionOptions& options);

// Returns true if the target has matmuls in that dtype, f16 or bf16.
bool HasMatmul(const ir::Target& target, ir::DType dtype);

// Returns true if a node with attribute result_dtype can have an f32 result for
// its present operands. Also true if no library implements the node. False if a
// library implements it only with results in the operands' dtype: cuDNN has no
// f32 gradients of 16-bit weights. False also if that holds for the candidate
// that PassOptions::choices name.
bool HasWideResult(const ir::Node& node, const PassContext& context);

// Returns true if rank-1 operands, e.g. a convolution's bias, stay f32 when
// mixed precision narrows the others to `dtype`. Depends on the op. False if
// the library implements the node only with narrow vectors, as cuDNN does.
bool KeepsVectorsWide(const ir::Node& node, ir::DType dtype,
                      const ir::TargetQueries& target);

// Adds the node to `scratch`, with those f32 operands in `dtype` that mixed
// precision would narrow. Gradients of weights stay f32 if the library has
// that.
const ir::Node& AddRetyped(ir::Graph& scratch, const ir::Node& node,
                           ir::DType dtype, const PassContext& context);

// Time of a convolution in f32 and in the narrow dtype; 0 if not available.
struct PrecisionTimes {
  double wide_ns = 0;
  double narrow_ns = 0;
};

// Parameters of the choice between f32 and 16 bit for convolutions.
struct WideRule {
  // Returns the times of a convolution.
  std::function<PrecisionTimes(const ir::Node&)> times;
  // Problems that are already decided; true: f32.
  std::map<std::string, bool> given;
  // Returns true for nodes that propagate precision without a matmul.
  std::function<bool(const ir::Node&)> passes_on;
  // Returns true if mixed precision would run the node in 16 bit.
  std::function<bool(const ir::Node&)> allowed;
  // Time of a cast per byte read or written.
  double ns_per_byte = 0;
  // f32 is chosen if its time is at most `margin` * the time in 16 bit, casts
  // included.
  double margin = 1;
};

// Returns the rule without measurements: estimated times of the candidates that
// would be chosen, casts at the target's bandwidth, and a margin for model
// error. PassOptions::choices take precedence.
WideRule ModelledRule(const PassContext& context);

// Returns the problems (ir::LibraryProblem) of the graph that are faster in
// f32. All convolutions of one problem are decided together. An activation is
// cast between nodes of different precision, adjacent or connected through
// nodes that propagate precision, so adjacent f32 nodes save more than the sum
// of their individual gains. Starts with all problems that win without casts,
// then iterates over all problems in the order of their names until none
// changes. Deterministic. Ignores nodes whose operands already are 16-bit.
std::set<std::string> FasterInF32(const ir::Graph& graph, const WideRule& rule);

}  // namespace fusor::passes
