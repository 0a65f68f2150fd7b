#pragma once

// The CUDA driver, opened at run time. Its functions are members with the names
// of cuda.h.

#include <cuda.h>

#include <string>

namespace fusor::cuda {

#define FUSOR_DRIVER_FUNCTIONS(F) \
  F(cuInit)                       \
  F(cuGetErrorName)               \
  F(cuGetErrorString)             \
  F(cuDeviceGetCount)             \
  F(cuDeviceGet)                  \
  F(cuDeviceGetName)              \
  F(cuDeviceGetAttribute)         \
  F(cuDevicePrimaryCtxRetain)     \
  F(cuDevicePrimaryCtxRelease)    \
  F(cuCtxSetCurrent)              \
  F(cuCtxSynchronize)             \
  F(cuMemGetInfo)                 \
  F(cuMemAlloc)                   \
  F(cuMemFree)                    \
  F(cuMemHostAlloc)               \
  F(cuMemFreeHost)                \
  F(cuMemsetD8Async)              \
  F(cuMemcpyHtoDAsync)            \
  F(cuMemcpyDtoHAsync)            \
  F(cuMemcpyDtoDAsync)            \
  F(cuCtxGetStreamPriorityRange)  \
  F(cuStreamCreate)               \
  F(cuStreamCreateWithPriority)   \
  F(cuStreamDestroy)              \
  F(cuStreamSynchronize)          \
  F(cuStreamWaitEvent)            \
  F(cuStreamBeginCapture)         \
  F(cuStreamEndCapture)           \
  F(cuGraphInstantiate)           \
  F(cuGraphUpload)                \
  F(cuGraphLaunch)                \
  F(cuGraphExecDestroy)           \
  F(cuGraphDestroy)               \
  F(cuEventCreate)                \
  F(cuEventDestroy)               \
  F(cuEventRecord)                \
  F(cuEventQuery)                 \
  F(cuEventSynchronize)           \
  F(cuEventElapsedTime)           \
  F(cuModuleLoadData)             \
  F(cuModuleUnload)               \
  F(cuModuleGetFunction)          \
  F(cuFuncSetAttribute)           \
  F(cuLaunchKernel)               \
  F(cuLaunchHostFunc)

struct Driver {
#define FUSOR_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  FUSOR_DRIVER_FUNCTIONS(FUSOR_DRIVER_MEMBER)
#undef FUSOR_DRIVER_MEMBER

  // Throws kOutOfMemory or kDevice, with the call and the driver's reason,
  // unless `result` is success.
  void Check(CUresult result, const char* call) const;
  // Ignores an error in a destructor, which cannot throw. The next call returns
  // the same error, or the process ends soon.
  static void Ignore(CUresult) noexcept {}
};

// Opens and initialises the driver at the first call. Throws kDevice if it is
// missing, lacks a function or is too old.
const Driver& LoadDriver();

}  // namespace fusor::cuda
