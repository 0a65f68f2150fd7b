#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/scalar_op.h"

namespace fusor::codegen {

// A C++ expression whose type is CudaType(arith).
struct CudaExpression {
  std::string text;
  Arith arith;
};

// Returns bool, int, i64, float or double.
std::string_view CudaType(Arith arith);
// Returns the integer type that holds all indices of the kernel, including
// those of masked lanes: int or i64.
std::string_view CudaIndexType(const Kernel& kernel);
// Returns the prelude's struct for the dtype: "F16", ...
std::string_view CudaTag(ir::DType dtype);
// Returns the prelude's struct for a reduction: "AddOp", ...
std::string_view CudaReduction(ir::ScalarOp op);

// Returns the index as an expression of the variables a0, a1, ... of the axes.
std::string CudaIndex(const Index& index);
// Returns the condition under which the bounds hold.
std::string CudaHolds(const std::vector<Bound>& bounds);
// Returns the variable r0, r1, ... of the register; of lane l if it is a
// vector.
CudaExpression CudaRegister(const Kernel& kernel, int reg);
// Returns the condition under which all indices in registers are inside.
std::string CudaInside(const Kernel& kernel, const Stmt& stmt);
// Returns the mask of the threads in this thread's warp of a block.
std::string CudaWarpMask(int threads);

// Returns `value` as a literal in the arithmetic type of `dtype`. Integers
// truncate; infinities become the least and greatest integer of `dtype`.
std::string CudaConstant(ir::DType dtype, double value);

// Converts to the arithmetic type of `dtype` such that a later rounding to
// `dtype` is correct: f64 to a 16-bit float is not rounded twice.
std::string CudaConvert(const CudaExpression& value, ir::DType dtype);

// Returns op(operands) in the arithmetic type of `dtype`. Uses functions of the
// prelude.
// `contract`: allows FMA contraction.
std::string CudaScalar(ir::ScalarOp op,
                       std::span<const CudaExpression> operands,
                       ir::DType dtype, bool contract);

// Returns the CUDA C++ at the start of every kernel's text: types, memory
// access, element functions and reductions. It includes no headers. Without
// FUSOR_EMULATED it is for NVRTC or nvcc. With FUSOR_EMULATED it is for a C++
// compiler, and an emulator must have declared CUDA's built-ins, conversions
// between binary16 and f32, the functions of asynchronous copies and tensor
// cores, and these macros:
//
//   FUSOR_ON_READ(pointer, bytes), FUSOR_ON_WRITE: before accesses of global
//     memory
//   FUSOR_DYNAMIC_SHARED(name, bytes): declares shared memory of a size that
//     the launch states
//   FUSOR_ON_SHARED(pointer, bytes): the block's shared memory
//   FUSOR_ON_SHARED_READ(pointer, bytes), ..WRITE: before its accesses
std::string_view CudaPrelude();

}  // namespace fusor::codegen
