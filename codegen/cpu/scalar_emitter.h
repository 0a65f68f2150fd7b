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

// Emit elementary functions of f32 values inline, lane by lane. The error is at
// most 2 units in the last place, for pow 1, measured over all arguments by
// tests/runtime/cpu/math_test.cc. Infinities, NaN and signs are as in C. Log
// treats subnormal arguments as zero; subnormal results may be flushed. No
// result depends on FMA contraction.
llvm::Value* EmitExp(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitLog(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitTanh(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitSin(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitCos(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitErf(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitPow(ValueBuilder& b, llvm::Value* x, llvm::Value* y);

// Emits one call per lane of a libm function on f64 values.
llvm::Value* EmitLibmCall(ValueBuilder& b, const char* name,
                          std::initializer_list<llvm::Value*> operands);

// Emits RandomUniform(key, step, site, rank, index) of ir/support/philox.h as
// f32. `key` and `step` are i64 scalars; `index` is an i64 scalar or vector.
llvm::Value* EmitUniform(ValueBuilder& b, llvm::Value* key, llvm::Value* step,
                         int64_t site, int64_t rank, llvm::Value* index);

}  // namespace fusor::cpu
