#pragma once

#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/nccl/nccl_connection.h"

namespace fusor::cuda {

// Allocates zeroed memory with ncclMemAlloc and registers it with NCCL, so that
// other GPUs and the network access it without copies to NCCL's buffers. Its
// destructor deregisters it. All ranks must allocate the same sizes in the same
// order. The connection and the context must outlive it. Throws kOutOfMemory,
// kPeerLost.
std::unique_ptr<runtime::Memory> AllocateRegistered(
    const NcclConnection& connection, const Context& context, size_t bytes);

}  // namespace fusor::cuda
