#include "codegen/cuda/matmul_problem.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ir/library_fusion.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;
using ir::DType;
using ir::TensorType;

constexpr std::string_view kPlanStart = R"({"library":"cublaslt",)";

// NVIDIA's recommendation for Hopper and later (cuBLAS, "cublasSetWorkspace").
constexpr int64_t kWorkspace = int64_t{32} << 20;

bool IsPlain(const TensorType& type) {
  return (type.dtype == DType::kF16 || type.dtype == DType::kBF16 ||
          type.dtype == DType::kF32) &&
         type.rank() >= 2 && type.layout.is_row_major();
}

// A bias must have the result's dtype: CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE.
bool HasKnownBias(const LibraryCall& call) {
  return call.operands.size() == 2 ||
         call.operands[2].dtype == call.results[0].dtype;
}

std::string_view EpilogueName(const MatmulProblem& p) {
  if (p.bias) return p.relu ? "relu_bias" : "bias";
  return p.relu ? "relu" : "default";
}

// Returns the number of columns, the last extent, or of rows, the one before.
int64_t Extent(const TensorType& type, bool columns) {
  return type.shape[type.rank() - (columns ? 1 : 2)];
}

int64_t Matrices(const TensorType& type) {
  return type.num_elements() / Extent(type, false) / Extent(type, true);
}

}  // namespace

std::optional<MatmulProblem> DescribeMatmul(const LibraryCall& call) {
  if (call.op != ir::OpKind::kMatmul) return std::nullopt;
  const auto epilogue = ir::EpilogueOf(call.body.get());
  const TensorType& a = call.operands[1];  // cuBLASLt's
  const TensorType& b = call.operands[0];
  const TensorType& c = call.results[0];
  MatmulProblem p;
  p.batch = Matrices(c);
  if (!epilogue.has_value() || !IsPlain(a) || !IsPlain(b) || !IsPlain(c) ||
      a.dtype != b.dtype || Matrices(a) != p.batch || Matrices(b) != p.batch ||
      !HasKnownBias(call)) {
    return std::nullopt;
  }
  p.transpose_a = call.attrs.Bool("transpose_b");
  p.transpose_b = call.attrs.Bool("transpose_a");
  p.m = Extent(c, true);
  p.n = Extent(c, false);
  p.k = Extent(b, !p.transpose_b);
  FUSOR_ASSERT(
      Extent(a, !p.transpose_a) == p.m && Extent(a, p.transpose_a) == p.k, "{}",
      codegen::Print(call));
  p.lda = Extent(a, true);
  p.ldb = Extent(b, true);
  p.ldc = p.m;
  p.stride_a = p.m * p.k;
  p.stride_b = p.n * p.k;
  p.stride_c = p.m * p.n;
  p.operands = a.dtype;
  p.result = c.dtype;
  p.bias = epilogue->bias;
  p.relu = epilogue->relu;
  return p;
}

int64_t MatmulWorkspace(const LibraryCall& call) {
  return call.workspace_bytes - kMatmulWorkspaceAlignment;
}

bool PrepareMatmul(LibraryCall& call) {
  const std::optional<MatmulProblem> p = DescribeMatmul(call);
  if (!p) return false;
  const std::string compute = p->operands == DType::kF32 ? "tf32" : "f32";
  const auto op = [](bool transposed) { return transposed ? "T" : "N"; };
  call.implementation = fmt::format(
      "cublaslt {}{} {} -> {}{}{}, {} arithmetic, algorithm at load",
      op(p->transpose_a), op(p->transpose_b), ir::DTypeName(p->operands),
      ir::DTypeName(p->result), p->bias ? ", bias" : "",
      p->relu ? ", ReLU" : "", compute);
  call.workspace_bytes = kWorkspace + kMatmulWorkspaceAlignment;
  call.plan = fmt::format(
      R"({{{}"m":{},"n":{},"k":{},"batch":{},)"
      R"("op_a":"{}","op_b":"{}","lda":{},"ldb":{},"ldc":{},)"
      R"("stride_a":{},"stride_b":{},"stride_c":{},)"
      R"("type_a":"{}","type_b":"{}","type_c":"{}","compute":"{}",)"
      R"("epilogue":"{}","workspace":{}}})",
      kPlanStart.substr(1), p->m, p->n, p->k, p->batch, op(p->transpose_a),
      op(p->transpose_b), p->lda, p->ldb, p->ldc, p->stride_a, p->stride_b,
      p->stride_c, ir::DTypeName(p->operands), ir::DTypeName(p->operands),
      ir::DTypeName(p->result), compute, EpilogueName(*p), kWorkspace);
  return true;
}

bool IsPreparedMatmul(const LibraryCall& call) {
  return call.plan.starts_with(kPlanStart);
}

}  // namespace fusor::cuda
