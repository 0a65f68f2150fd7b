#include "codegen/cuda/planned_call.h"

#include <charconv>

#include "codegen/cuda/matmul_problem.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;

constexpr std::string_view kCudnnPlanStart = "{\"cudnnVersion\":";

}  // namespace

bool IsMemoryCopy(const LibraryCall& call) {
  return call.op == ir::OpKind::kCopy && call.operands[0] == call.results[0];
}

bool PrepareMemoryCopy(LibraryCall& call) {
  if (!IsMemoryCopy(call)) return false;
  call.implementation = "memcpy";
  return true;
}

std::optional<size_t> CudnnVersionOf(const LibraryCall& call) {
  const std::string& plan = call.plan;
  if (!plan.starts_with(kCudnnPlanStart)) return std::nullopt;
  size_t version = 0;
  std::from_chars(plan.data() + kCudnnPlanStart.size(),
                  plan.data() + plan.size(), version);
  return version;
}

std::string_view LibraryOf(const LibraryCall& call) {
  if (CudnnVersionOf(call).has_value()) return "cudnn";
  if (IsPreparedMatmul(call)) return "cublaslt";
  return IsMemoryCopy(call) ? "driver" : "";
}

}  // namespace fusor::cuda
