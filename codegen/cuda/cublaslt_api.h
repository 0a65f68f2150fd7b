#pragma once

// cuBLASLt, opened at run time. Its functions are members of the same names.

#include <cublasLt.h>

#include <string>

namespace fusor::cuda {

#define FUSOR_CUBLASLT_FUNCTIONS(F)       \
  F(cublasLtGetVersion)                   \
  F(cublasLtGetStatusName)                \
  F(cublasLtGetStatusString)              \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatrixLayoutSetAttribute)     \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmul)

struct Cublaslt {
#define FUSOR_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  FUSOR_CUBLASLT_FUNCTIONS(FUSOR_CUBLASLT_MEMBER)
#undef FUSOR_CUBLASLT_MEMBER

  std::string Version() const;  // "cuBLASLt 13.1.0"
  // Throws kDevice with version, call and status unless `status` is success.
  void Check(cublasStatus_t status, const char* call) const;
};

// Opens cuBLASLt at the first call. Throws kDevice if it is missing or lacks a
// function.
const Cublaslt& LoadCublaslt();

}  // namespace fusor::cuda
