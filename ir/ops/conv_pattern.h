#pragma once

// What libraries compute together with a convolution, as attributes of the
// three ops say (ir/ops/conv.cc): types and the interpreter's rules.

#include <span>
#include <vector>

#include "ir/interpreter/strided_loops.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

// prologue "norm": two operands, scale and bias of x's channels, after x and
// the other tensor: the convolution reads relu(x * scale + bias), rounded to
// x's dtype, in place of x. "join": and a tensor like x, which is added before
// the ReLU; "dual": and another x with scale and bias, whose x * scale + bias
// is added. With these two what the convolution reads is its last result.
bool HasPrologue(const Attrs& attrs);
bool StoresPrologue(const Attrs& attrs);
// Throws kGraph where operands or prologue are none of these; of a gradient
// "norm" alone.
void CheckPrologue(std::span<const TensorType> in, const Attrs& attrs,
                   bool gradient);
// What the convolution reads; `held` keeps it.
const Tensor& EvalPrologue(const Node& node, EvalInputs in, EvalMode mode,
                           Tensor& held);

// statistics: two results more, f32 [C]: the sums of the result, rounded as it
// is, and of its squares.
void AddStatistics(std::vector<TensorType>& results);
void EvalStatistics(EvalOutputs out, EvalMode mode);

// Of a data gradient, after dy and weight: accumulate or add, a tensor that is
// added, then what its norm says, "", "relu", "join" or "dual".
void CheckGradientOperands(std::span<const TensorType> in,
                           const TensorType& result, const Attrs& attrs);
void AddGradientSums(std::vector<TensorType>& results, const Attrs& attrs);
// out[0] holds the data gradient alone.
void FinishGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                     EvalMode mode);

}  // namespace fusor::ir
