#pragma once

#include <optional>

#include "codegen/plan/plan.h"

namespace fusor::cuda {

// cuBLASLt's algorithm is chosen when a plan is loaded, because a handle needs
// a device. Everything else is decided here: operands, transpositions, leading
// dimensions, types, and the workspace that the algorithm may use.
//
// Row-major C = A B is column-major C' = B' A', so that cuBLASLt's A is the
// call's second operand.
struct MatmulProblem {
  // Column-major: C [m,n] = op(A) op(B), summed over k.
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;  // matrices, stride_* elements apart
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;  // leading dimensions, elements
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  ir::DType operands{}, result{};
  // Adds one value per row of C, in C's dtype. A row of C is a column of the
  // call's result.
  bool bias = false;
  bool relu = false;  // after the bias
};

// Describes a matmul of f16, bf16 or f32, whose bias, if any, has the result's
// dtype; nullopt for any other call.
std::optional<MatmulProblem> DescribeMatmul(const codegen::LibraryCall& call);

// Padding for the alignment that cuBLASLt expects, which plan buffers lack.
// MatmulWorkspace returns LibraryCall::workspace_bytes without it.
inline constexpr int64_t kMatmulWorkspaceAlignment = 256;
int64_t MatmulWorkspace(const codegen::LibraryCall& call);

// Fills in implementation, workspace_bytes and plan if DescribeMatmul describes
// the call; otherwise leaves it unchanged and returns false. The plan is the
// problem as JSON in cuBLASLt's terms: op_a and op_b are "N" or "T"; compute is
// "tf32" for f32 operands, else "f32"; epilogue is "default", "bias", "relu" or
// "relu_bias".
bool PrepareMatmul(codegen::LibraryCall& call);

// Returns whether PrepareMatmul made the call's plan.
bool IsPreparedMatmul(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
