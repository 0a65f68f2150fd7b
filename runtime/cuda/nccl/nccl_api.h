#pragma once

// NCCL, opened at run time, if the build has NCCL's header. Its functions are
// members of the same names.

#ifdef FUSOR_NCCL
#include <nccl.h>

namespace fusor::cuda {

#define FUSOR_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion)             \
  F(ncclGetUniqueId)            \
  F(ncclGetErrorString)         \
  F(ncclGetLastError)           \
  F(ncclCommInitRankConfig)     \
  F(ncclCommGetAsyncError)      \
  F(ncclCommFinalize)           \
  F(ncclCommDestroy)            \
  F(ncclCommAbort)              \
  F(ncclMemAlloc)               \
  F(ncclMemFree)                \
  F(ncclCommRegister)           \
  F(ncclCommDeregister)         \
  F(ncclAllReduce)              \
  F(ncclReduceScatter)          \
  F(ncclAllGather)              \
  F(ncclBroadcast)              \
  F(ncclReduce)                 \
  F(ncclSend)                   \
  F(ncclRecv)                   \
  F(ncclGroupStart)             \
  F(ncclGroupEnd)

struct Nccl {
#define FUSOR_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  FUSOR_NCCL_FUNCTIONS(FUSOR_NCCL_MEMBER)
#undef FUSOR_NCCL_MEMBER
};

// Opens NCCL at the first call. Throws kDevice if it is missing or lacks a
// function.
const Nccl& LoadNccl();

}  // namespace fusor::cuda
#endif  // FUSOR_NCCL
