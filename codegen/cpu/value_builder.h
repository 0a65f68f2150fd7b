#pragma once

#include <llvm/IR/IRBuilder.h>

#include <span>

#include "codegen/kernel/kernel_ir.h"
#include "ir/dtype.h"

namespace fusor::cpu {

// Arith::kBool is an i1.
using codegen::Arith;
using codegen::ArithOf;
using codegen::IsFloat;

// Instructions that generated code may use beyond AVX2.
struct VectorExtensions {
  bool avx512 = false;  // AVX-512 F and VL
  bool avx512_bf16 = false;
};

// Builds scalars and vectors of lanes. Functions that take a value work lane by
// lane and return the same number of lanes.
class ValueBuilder {
 public:
  ValueBuilder(llvm::LLVMContext& context, int lanes,
               const VectorExtensions& extensions);

  llvm::IRBuilder<>& ir() { return builder_; }
  int lanes() const { return lanes_; }

  llvm::Type* TypeOf(Arith arith, bool vector);
  // Returns the type in memory: bool and u8 are i8, bf16 is i16.
  llvm::Type* MemoryType(ir::DType dtype);
  // Returns `type` with the number of lanes of `like`.
  llvm::Type* Like(llvm::Type* type, llvm::Value* like);
  llvm::Value* Splat(llvm::Value* value);
  // Returns the given lanes of the concatenated vectors.
  llvm::Value* Pick(std::span<llvm::Value* const> vectors,
                    std::span<const int> lanes);

  // Returns `value` as a constant in the arithmetic type of `dtype`. Integers
  // truncate; infinities become the least and greatest integer of `dtype`.
  llvm::Value* Constant(ir::DType dtype, bool vector, double value);
  // Return constants of the type of `like`.
  llvm::Value* Float(llvm::Value* like, double value);
  llvm::Value* Int(llvm::Value* like, int64_t value);

  // Converts between arithmetic types. Floats are truncated to integers.
  // Nonzero values become true.
  llvm::Value* Convert(llvm::Value* value, Arith from, Arith to);
  // Converts to the arithmetic type of `dtype` such that a later Round() to
  // `dtype` is correct: f64 to a 16-bit float is not rounded twice.
  llvm::Value* ConvertFor(llvm::Value* value, Arith from, ir::DType dtype);
  // Rounds to the nearest value of `dtype`; returns it in its arithmetic type.
  llvm::Value* Round(llvm::Value* value, ir::DType dtype);

  // Convert a value from its type in memory to its arithmetic type and back.
  // ToMemory rounds.
  llvm::Value* FromMemory(llvm::Value* value, ir::DType dtype);
  llvm::Value* ToMemory(llvm::Value* value, Arith from, ir::DType dtype);

  // Call emits a one-operand intrinsic of the value's type, Fma an FMA.
  llvm::Value* Call(llvm::Intrinsic::ID id, llvm::Value* value);
  llvm::Value* Fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  // Applies `function` to each register of an f32 value. All at once, long
  // functions would need more registers than there are.
  llvm::Value* ForEachRegister(
      llvm::Value* x, llvm::function_ref<llvm::Value*(llvm::Value*)> function);
  // Returns x * 2^n of f32 x and integral f32 n, rounded once, in a single
  // instruction; null if the target has none for these types.
  llvm::Value* Scalef(llvm::Value* x, llvm::Value* n);

 private:
  llvm::Value* FloatToBFloat16(llvm::Value* value);
  llvm::Value* NarrowToOdd(llvm::Value* value);

  llvm::IRBuilder<> builder_;
  int lanes_;
  VectorExtensions extensions_;
};

}  // namespace fusor::cpu
