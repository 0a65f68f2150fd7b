#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "ir/graph.h"
#include "ir/op.h"
#include "passes/passes.h"

namespace fusor::passes {

// The op registry's rule, or that of the user's lists.
ir::PrecisionRule RuleOf(const ir::Node& node, const PrecisionOptions& options);

// Says itself what its result is: stands between regions, belongs to none.
bool IsCast(const ir::Node& node);

// Whether the target multiplies in that dtype, f16 or bf16.
bool HasMatmul(const ir::Target& target, ir::DType dtype);

// Whether a node with attribute result_dtype can have an f32 result of the
// operands that it has. True where no library does the node; false where one
// does, with results in the operands' dtype alone: cuDNN has no f32 gradients
// of 16-bit weights.
bool HasWideResult(const ir::Node& node, const ir::TargetQueries& target);

// Whether vectors among the operands - a convolution's bias - stay f32 when
// mixed precision narrows the others to `dtype`: ops ask for that, and have it
// unless the library does the node with narrow vectors alone, as cuDNN does.
bool KeepsVectorsWide(const ir::Node& node, ir::DType dtype,
                      const ir::TargetQueries& target);

// Adds the node to `scratch`, with operands in `dtype` where they are f32 and
// mixed precision would narrow them; gradients of weights stay f32 where the
// library has that.
const ir::Node& AddRetyped(ir::Graph& scratch, const ir::Node& node,
                           ir::DType dtype, const ir::TargetQueries& target);

// How long a convolution takes in f32 and in the narrow dtype. 0: it cannot be
// done so.
struct PrecisionTimes {
  double wide_ns = 0;
  double narrow_ns = 0;
};

// What decides between f32 and 16 bit for convolutions.
struct WideRule {
  // Of a convolution.
  std::function<PrecisionTimes(const ir::Node&)> times;
  // Problems that are decided already: whether in f32.
  std::map<std::string, bool> given;
  // Nodes through which precision spreads: it may have either without being
  // multiplied in it.
  std::function<bool(const ir::Node&)> passes_on;
  // Whether mixed precision would give the node 16 bit.
  std::function<bool(const ir::Node&)> allowed;
  double ns_per_byte =
      0;  // of a cast that reads one dtype and writes the other
  // Time in f32, casts included, over the time in 16 bit that it must not
  // exceed.
  double margin = 1;
};

// What holds without measurements: the modelled times of the candidates that
// would be chosen, casts at the target's bandwidth, a margin for what a model
// may be wrong by. With what PassOptions::choices give.
WideRule ModelledRule(const PassContext& context);

// Problems (ir::ConvolutionProblem) of the graph that are to be computed in f32
// for they are faster so. All convolutions of one problem are decided together.
// An activation is cast where it goes from a node in one precision to one in
// the other, directly or through nodes that pass precision on; so neighbours in
// f32 are worth more than the sum of them. Starts with all problems that would
// win without casts and then goes over all, in the order of their names, until
// none changes. Deterministic. Nodes that have 16-bit operands already stay
// out.
std::set<std::string> FasterInF32(const ir::Graph& graph, const WideRule& rule);

}  // namespace fusor::passes
