#include "runtime/cuda/library_calls.h"

#include "codegen/cuda/matmul_problem.h"
#include "codegen/cuda/planned_call.h"
#include "runtime/cuda/cublaslt_call.h"
#include "runtime/cuda/cudnn_call.h"
#include "runtime/cuda/memory_copy.h"

namespace fusor::cuda {

using codegen::LibraryCall;

std::string_view LibraryOf(const LibraryCall& call) {
  if (IsCudnnCall(call)) return "cudnn";
  if (IsPreparedMatmul(call)) return "cublaslt";
  return IsMemoryCopy(call) ? "driver" : "";
}

MakeDeviceCall CudaLibraryCalls(const codegen::WarningHandler& warning) {
  return [cudnn = CudnnCalls(warning), cublaslt = CublasltCalls()](
             const LibraryCall& call) -> std::unique_ptr<DeviceCall> {
    const std::string_view library = LibraryOf(call);
    if (library == "cudnn") return cudnn(call);
    if (library == "cublaslt") return cublaslt(call);
    return MakeMemoryCopy(call);
  };
}

}  // namespace fusor::cuda
