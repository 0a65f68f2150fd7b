#pragma once

#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/nccl/nccl_connection.h"

namespace fusor::cuda {

// Zero-filled memory of NCCL's own kind, which it can register, and has: other
// GPUs' or the network's accesses need no copy to buffers of NCCL's. Its end is
// its registration's end. All ranks allocate the same, in the same order. The
// connection and the context must outlive it. Throws kOutOfMemory, kPeerLost.
std::unique_ptr<runtime::Memory> AllocateRegistered(
    const NcclConnection& connection, const Context& context, size_t bytes);

}  // namespace fusor::cuda
