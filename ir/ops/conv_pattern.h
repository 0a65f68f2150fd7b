#pragma once

// Operations fused into a convolution, selected by attributes of the three ops
// (ir/ops/conv.cc): their types and interpreter rules.

#include <span>
#include <vector>

#include "ir/interpreter/strided_loops.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

// The `prologue` attribute replaces the convolution's input x by an expression,
// rounded to x's dtype. Its operands follow x and the other tensor; s and b are
// floating vectors, one element per channel of x.
//
//   "norm"  relu(x * s + b)                  operands s, b
//   "join"  relu(x * s + b + r)              operands s, b, r like x
//   "dual"  relu(x * s + b + x2 * s2 + b2)   operands s, b, x2 like x, s2, b2
//
// "join" and "dual" also return the expression as the last result.
bool HasPrologue(const Attrs& attrs);
bool StoresPrologue(const Attrs& attrs);
// Throws kGraph if the prologue is unknown or its operands do not fit. A
// gradient supports "norm" only.
void CheckPrologue(std::span<const TensorType> in, const Attrs& attrs,
                   bool gradient);
// Returns the tensor that the convolution reads, computed into `held` if
// needed.
const Tensor& EvalPrologue(const Node& node, EvalInputs in, EvalMode mode,
                           Tensor& held);

// `statistics` adds two f32 [C] results: sums of the rounded result and its
// square.
void AddStatistics(std::vector<TensorType>& results);
void EvalStatistics(EvalOutputs out, EvalMode mode);

// Operands of a data gradient after dy and weight: with `accumulate` or `add`
// an addend, then those of the attribute `norm`: "", "relu", "join" or "dual".
void CheckGradientOperands(std::span<const TensorType> in,
                           const TensorType& result, const Attrs& attrs);
void AddGradientSums(std::vector<TensorType>& results, const Attrs& attrs);
// Applies the fused operations. REQUIRES: out[0] holds the plain data gradient.
void FinishGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                     EvalMode mode);

}  // namespace fusor::ir
