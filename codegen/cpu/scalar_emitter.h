#pragma once

#include <span>

#include "codegen/cpu/value_builder.h"
#include "ir/scalar_op.h"

namespace fusor::cpu {

struct TypedValue {
  llvm::Value* value;
  Arith arith;
};

// Emits `op` of the operands, lane by lane, as ir::EvalScalar defines it.
// Returns the result in the arithmetic type (ArithOf) of `dtype`. Computes in
// the widest arithmetic type of operands and result. Computes transcendental
// functions of integers in f64. Broadcasts scalar operands if `vector` is set.
llvm::Value* EmitScalar(ValueBuilder& b, ir::ScalarOp op,
                        std::span<const TypedValue> operands, ir::DType dtype,
                        bool vector);

}  // namespace fusor::cpu
