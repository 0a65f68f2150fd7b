#pragma once

#include <optional>

#include "codegen/plan/plan.h"

namespace fusor::cuda {

// cuBLASLt cannot be asked for an algorithm without a device: its handle needs
// one. What is decided here, and planned memory for, is all else: operands,
// transpositions, leading dimensions, types, and how much workspace the
// algorithm that is asked for at load may take.
//
// Row-major C = A B is column-major C' = B' A', so that cuBLASLt's A is the
// call's second operand.
struct MatmulProblem {
  // Column-major: C [m,n] = op(A) op(B), summed over k.
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;  // products, stride elements apart
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;  // leading dimensions, elements
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  ir::DType operands{}, result{};
  // Of the result's rows here, columns in the call; in the result's dtype.
  bool bias = false;
  bool relu = false;  // after the bias
};

// Of a matmul of f16, bf16 or f32, with a bias in the result's dtype, if any;
// nothing for any other call.
std::optional<MatmulProblem> DescribeMatmul(const codegen::LibraryCall& call);

// Of LibraryCall::workspace_bytes, what an algorithm may take: the rest is for
// the alignment that cuBLASLt expects, which buffers of plans lack.
inline constexpr int64_t kMatmulWorkspaceAlignment = 256;
int64_t MatmulWorkspace(const codegen::LibraryCall& call);

// Fills in implementation, workspace_bytes and plan of what DescribeMatmul
// knows; false, with the call as it was, for any other. The plan is the problem
// as JSON, with "N" or "T" of op_a and op_b; compute is "tf32" for f32,
// epilogue "default", "bias", "relu" or "relu_bias", as cuBLASLt calls them.
bool PrepareMatmul(codegen::LibraryCall& call);

// Whether PrepareMatmul made the call's plan.
bool IsPreparedMatmul(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
