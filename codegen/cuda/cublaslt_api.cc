#include "codegen/cuda/cublaslt_api.h"

#include "codegen/cuda/dynamic_library.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

Cublaslt Open() {
  const Library library({"libcublasLt.so.13"});
  FUSOR_CHECK(library.found(), kDevice, "cuBLASLt: {}", library.problem());
  Cublaslt cublaslt;
#define FUSOR_CUBLASLT_FIND(function)                                          \
  cublaslt.function = library.Find<decltype(cublaslt.function)>(#function);    \
  FUSOR_CHECK(cublaslt.function != nullptr, kDevice, "cuBLASLt: {} has no {}", \
              library.name(), #function);
  FUSOR_CUBLASLT_FUNCTIONS(FUSOR_CUBLASLT_FIND)
#undef FUSOR_CUBLASLT_FIND
  return cublaslt;
}

}  // namespace

std::string Cublaslt::Version() const {
  const size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000,
                     version % 10000 / 100, version % 100);
}

void Cublaslt::Check(cublasStatus_t status, const char* call) const {
  FUSOR_CHECK(status == CUBLAS_STATUS_SUCCESS, kDevice, "{}: {}: {} ({})",
              Version(), call, cublasLtGetStatusName(status),
              cublasLtGetStatusString(status));
}

const Cublaslt& LoadCublaslt() {
  static const Cublaslt cublaslt = Open();
  return cublaslt;
}

}  // namespace fusor::cuda
