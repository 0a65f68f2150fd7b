#include "runtime/cuda/nccl/nccl_api.h"

#include "codegen/cuda/dynamic_library.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

Nccl Open() {
  const Library library({"libnccl.so.2"});
  FUSOR_CHECK(library.found(), kDevice, "NCCL: {}", library.problem());
  Nccl nccl;
#define FUSOR_NCCL_FIND(function)                                      \
  nccl.function = library.Find<decltype(nccl.function)>(#function);    \
  FUSOR_CHECK(nccl.function != nullptr, kDevice, "NCCL: {} has no {}", \
              library.name(), #function);
  FUSOR_NCCL_FUNCTIONS(FUSOR_NCCL_FIND)
#undef FUSOR_NCCL_FIND
  return nccl;
}

}  // namespace

const Nccl& LoadNccl() {
  static const Nccl nccl = Open();
  return nccl;
}

}  // namespace fusor::cuda
