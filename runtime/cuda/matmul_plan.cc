#include "runtime/cuda/matmul_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using ir::DType;
using ir::TensorType;

// What NVIDIA recommends for Hopper and later (cuBLAS, "cublasSetWorkspace").
constexpr int64_t kWorkspace = int64_t{32} << 20;

bool IsPlain(const TensorType& type) {
  return (type.dtype == DType::kF16 || type.dtype == DType::kBF16 ||
          type.dtype == DType::kF32) &&
         type.rank() >= 2 && type.layout.is_row_major();
}

// Rows or columns, the last two extents.
int64_t Extent(const TensorType& type, bool columns) {
  return type.shape[type.rank() - (columns ? 1 : 2)];
}

int64_t Matrices(const TensorType& type) {
  return type.num_elements() / Extent(type, false) / Extent(type, true);
}

}  // namespace

bool PrepareMatmul(codegen::LibraryCall& call) {
  if (call.op != "matmul") return false;
  const TensorType& a = call.operands[1];  // cuBLASLt's
  const TensorType& b = call.operands[0];
  const TensorType& c = call.results[0];
  const int64_t batch = Matrices(c);
  if (!IsPlain(a) || !IsPlain(b) || !IsPlain(c) || a.dtype != b.dtype ||
      Matrices(a) != batch || Matrices(b) != batch) {
    return false;
  }
  const bool transpose_a = call.attrs.Bool("transpose_b");
  const bool transpose_b = call.attrs.Bool("transpose_a");
  const int64_t m = Extent(c, true);
  const int64_t n = Extent(c, false);
  const int64_t k = Extent(b, !transpose_b);
  FUSOR_ASSERT(Extent(a, !transpose_a) == m && Extent(a, transpose_a) == k,
               "{}", codegen::Print(call));
  const std::string compute = a.dtype == DType::kF32 ? "tf32" : "f32";
  const auto op = [](bool transposed) { return transposed ? "T" : "N"; };
  call.implementation =
      fmt::format("cublaslt {}{} {} -> {}, {} arithmetic, algorithm at load",
                  op(transpose_a), op(transpose_b), ir::DTypeName(a.dtype),
                  ir::DTypeName(c.dtype), compute);
  call.workspace_bytes = kWorkspace;
  call.plan = fmt::format(
      R"({{"library":"cublaslt","m":{},"n":{},"k":{},"batch":{},)"
      R"("op_a":"{}","op_b":"{}","lda":{},"ldb":{},"ldc":{},)"
      R"("stride_a":{},"stride_b":{},"stride_c":{},)"
      R"("type_a":"{}","type_b":"{}","type_c":"{}","compute":"{}",)"
      R"("workspace":{}}})",
      m, n, k, batch, op(transpose_a), op(transpose_b), Extent(a, true),
      Extent(b, true), m, m * k, n * k, m * n, ir::DTypeName(a.dtype),
      ir::DTypeName(b.dtype), ir::DTypeName(c.dtype), compute, kWorkspace);
  return true;
}

}  // namespace fusor::cuda
