#include "runtime/cuda/library_calls.h"

#include "codegen/cuda/planned_call.h"

namespace fusor::cuda {

using codegen::LibraryCall;

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
