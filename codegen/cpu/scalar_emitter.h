#pragma once

#include <span>

#include "codegen/cpu/value_builder.h"
#include "ir/scalar_op.h"

namespace fusor::cpu {

struct TypedValue {
  llvm::Value* value;
  Arith arith;
};

// `op` of the operands, lane by lane, as ir::EvalScalar defines it, in the
// arithmetic of `dtype`. Computed in the widest arithmetic among operands and
// result; exp and its like of integers in f64. Scalar operands are splat when
// `vector` is set.
llvm::Value* EmitScalar(ValueBuilder& b, ir::ScalarOp op,
                        std::span<const TypedValue> operands, ir::DType dtype,
                        bool vector);

}  // namespace fusor::cpu
