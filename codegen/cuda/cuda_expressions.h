#pragma once

#include <span>
#include <string>

#include "codegen/kernel/kernel_ir.h"
#include "ir/scalar_op.h"

namespace fusor::codegen {

// A C++ expression of the arithmetic's type: bool, int, i64, float or double.
struct CudaExpression {
  std::string text;
  Arith arith;
};

// "float", ...
std::string_view CudaType(Arith arith);
// The prelude's struct of the dtype: "F16", ...
std::string_view CudaTag(ir::DType dtype);
// The prelude's struct of a reduction: "AddOp", ...
std::string_view CudaReduction(ir::ScalarOp op);

// `value` as a literal in the arithmetic of `dtype`; integers truncate,
// infinities are the least and greatest integer of `dtype`.
std::string CudaConstant(ir::DType dtype, double value);

// To the arithmetic of `dtype`, such that rounding to it afterwards is right.
std::string CudaConvert(const CudaExpression& value, ir::DType dtype);

// op(operands) in the arithmetic of `dtype`, by functions of the prelude.
// `contract`: a*b+c may be computed with one rounding.
std::string CudaScalar(ir::ScalarOp op,
                       std::span<const CudaExpression> operands,
                       ir::DType dtype, bool contract);

}  // namespace fusor::codegen
