#pragma once

#include <span>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/op.h"

namespace fusor::ir {

// One table per family; registry.cc indexes them by kind.
std::span<const OpDef> ElementwiseOps();
std::span<const OpDef> SourceOps();
std::span<const OpDef> ShapeOps();
std::span<const OpDef> IndexedOps();
std::span<const OpDef> ReduceOps();
std::span<const OpDef> MatmulOps();
std::span<const OpDef> ConvOps();
std::span<const OpDef> PoolOps();
std::span<const OpDef> NormOps();
std::span<const OpDef> ImageOps();
std::span<const OpDef> ControlOps();  // collectives, fusion

// Returns `dy` where `y` is positive, zero elsewhere: the gradient of a ReLU
// with result `y`. Used by ops with a fused ReLU too.
Value* ReluGradient(Builder& b, Value* y, Value* dy);

// The interpreter's convolutions: direct sums in fp64, one matmul per kernel
// position.
void EvalConv(const Node& node, EvalInputs in, EvalOutputs out, EvalMode mode);
void EvalConvGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                       EvalMode mode);
void EvalConvGradWeight(const Node& node, EvalInputs in, EvalOutputs out,
                        EvalMode mode);

}  // namespace fusor::ir
