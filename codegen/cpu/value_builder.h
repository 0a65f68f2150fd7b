#pragma once

#include <llvm/IR/IRBuilder.h>

#include <span>

#include "codegen/kernel/kernel_ir.h"
#include "ir/dtype.h"

namespace fusor::cpu {

// kBool is one bit.
using codegen::Arith;
using codegen::ArithOf;
using codegen::IsFloat;

// Builds values that are scalars or vectors of lanes; every function that takes
// a value works lane by lane and yields the same number of lanes.
class ValueBuilder {
 public:
  // `native_bf16`: the target has AVX512-BF16.
  ValueBuilder(llvm::LLVMContext& context, int lanes, bool native_bf16);

  llvm::IRBuilder<>& ir() { return builder_; }
  int lanes() const { return lanes_; }

  llvm::Type* TypeOf(Arith arith, bool vector);
  // In memory: bool and u8 are bytes, bf16 a 16-bit integer.
  llvm::Type* MemoryType(ir::DType dtype);
  // `type` with the lanes of `like`.
  llvm::Type* Like(llvm::Type* type, llvm::Value* like);
  llvm::Value* Splat(llvm::Value* value);
  // Those lanes of vectors, numbered through from the first vector's first.
  llvm::Value* Pick(std::span<llvm::Value* const> vectors,
                    std::span<const int> lanes);

  // A double as a constant of that arithmetic; integers truncate, infinities
  // are the least and greatest integer of `dtype`.
  llvm::Value* Constant(ir::DType dtype, bool vector, double value);
  // Constants with the type of `like`.
  llvm::Value* Float(llvm::Value* like, double value);
  llvm::Value* Int(llvm::Value* like, int64_t value);

  // Between arithmetics: integers to floats and back by truncation, anything to
  // bool by != 0.
  llvm::Value* Convert(llvm::Value* value, Arith from, Arith to);
  // To the arithmetic of `dtype`, such that Round() to it afterwards is right:
  // from f64 to a 16-bit float there is no second rounding on the way.
  llvm::Value* ConvertFor(llvm::Value* value, Arith from, ir::DType dtype);
  // The nearest value of `dtype`, still in its arithmetic.
  llvm::Value* Round(llvm::Value* value, ir::DType dtype);

  // From what lies in memory to arithmetic and back, the latter rounding.
  llvm::Value* FromMemory(llvm::Value* value, ir::DType dtype);
  llvm::Value* ToMemory(llvm::Value* value, Arith from, ir::DType dtype);

  // One-operand intrinsics of the value's type; fused multiply-add.
  llvm::Value* Call(llvm::Intrinsic::ID id, llvm::Value* value);
  llvm::Value* Fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);

 private:
  llvm::Value* FloatToBFloat16(llvm::Value* value);
  llvm::Value* NarrowToOdd(llvm::Value* value);

  llvm::IRBuilder<> builder_;
  int lanes_;
  bool native_bf16_;
};

}  // namespace fusor::cpu
