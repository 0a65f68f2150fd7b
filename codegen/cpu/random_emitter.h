#pragma once

#include "codegen/cpu/value_builder.h"

namespace fusor::cpu {

// Emits RandomUniform(key, step, site, rank, index) of ir/support/philox.h as
// f32. `key` and `step` are i64 scalars; `index` is an i64 scalar or vector.
llvm::Value* EmitUniform(ValueBuilder& b, llvm::Value* key, llvm::Value* step,
                         int64_t site, int64_t rank, llvm::Value* index);

}  // namespace fusor::cpu
