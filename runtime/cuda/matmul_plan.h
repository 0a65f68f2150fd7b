#pragma once

#include "codegen/plan.h"

namespace fusor::cuda {

// cuBLASLt cannot be asked for an algorithm without a device: its handle needs
// one. What is decided here, and planned memory for, is all else: operands,
// transpositions, leading dimensions, types, and how much workspace the
// algorithm that is asked for at load may take.
//
// Row-major C = A B is column-major C' = B' A', so that cuBLASLt's A is the
// call's second operand. LibraryCall::plan says so as JSON:
//
//   m, n, k            rows and columns of the column-major result, summed
//   batch              products, `stride_a`, _b, _c elements apart
//   op_a, op_b         "N" or "T"
//   lda, ldb, ldc      leading dimensions, elements
//   type_a, .., type_c, compute   as the IR names dtypes; "tf32" for f32
//
// Fills in implementation, workspace_bytes and plan of a matmul of f16, bf16 or
// f32; false, with the call as it was, for any other.
bool PrepareMatmul(codegen::LibraryCall& call);

}  // namespace fusor::cuda
