#pragma once

#include "codegen/cpu/value_builder.h"

namespace fusor::cpu {

// Emit elementary functions of f32 values inline, lane by lane. The error is at
// most 2 units in the last place, for pow 1, measured over all arguments by
// tests/runtime/cpu/math_test.cc. Infinities, NaN and signs are as in C. Log
// treats subnormal arguments as zero; subnormal results may be flushed. No
// result depends on FMA contraction.
llvm::Value* EmitExp(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitLog(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitTanh(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitErf(ValueBuilder& b, llvm::Value* x);
llvm::Value* EmitPow(ValueBuilder& b, llvm::Value* x, llvm::Value* y);

// Emits one call per lane of a libm function on f64 values.
llvm::Value* EmitLibmCall(ValueBuilder& b, const char* name,
                          std::initializer_list<llvm::Value*> operands);

}  // namespace fusor::cpu
