#include "codegen/cpu/host.h"

#include <omp.h>

namespace fusor::cpu {

bool HasOwnCalls(ir::DType dtype) {
  return dtype == ir::DType::kF32 || dtype == ir::DType::kBF16;
}

VectorIsa WidestIsa() {
  if (__builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return VectorIsa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return VectorIsa::kAvx2;
  }
  return VectorIsa::kPlain;
}

std::string_view IsaName(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kPlain:
      return "plain";
    case VectorIsa::kAvx2:
      return "avx2";
    case VectorIsa::kAvx512:
      return "avx512";
  }
  return "";
}

ThreadCount::ThreadCount(int threads) : saved_(omp_get_max_threads()) {
  omp_set_num_threads(threads);
}

ThreadCount::~ThreadCount() { omp_set_num_threads(saved_); }

}  // namespace fusor::cpu
