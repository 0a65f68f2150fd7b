#pragma once

#include "codegen/cpu/value_builder.h"

namespace fusor::cpu {

// Elementary functions of f32 values, emitted inline, lane by lane. Errors
// against the exact value, measured over all arguments by
// tests/runtime/cpu/math_test.cc: within 2 units in the last place, pow within
// 1. Infinities, NaN and signs as in C. Subnormal arguments of log count as
// zero, subnormal results may be flushed. No result depends on contraction.
llvm::Value* EmitExp(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitLog(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitTanh(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitErf(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitPow(ValueBuilder& b, llvm::Value* x, llvm::Value* y);

// A function of libm on f64 values: one call a lane.
llvm::Value* EmitLibmCall(ValueBuilder& b, const char* name,
                          std::initializer_list<llvm::Value*> operands);

}  // namespace fusor::cpu
