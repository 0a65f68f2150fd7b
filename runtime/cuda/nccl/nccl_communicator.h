#pragma once

#include <memory>

#include "codegen/target_compiler.h"
#include "runtime/backend/communicator.h"
#include "runtime/distributed/tcp_store.h"

namespace fusor::cuda {

// Connects to all ranks for NCCL collectives on this rank's GPU (DeviceOfRank).
// They run on a separate stream of high priority and can be captured in a
// step's graph. Startup and shutdown cannot block the process, because both
// poll. Timeouts (options.timeout) and failures of a peer or the network throw
// kPeerLost. Only one rank has run on a GPU.
//
// `compiler`, for that GPU, compiles the kernels of reductions in rank order
// (ordered_reduce.h). REQUIRED if options.deterministic.
//
// Throws kDevice without NCCL, and kUsage if options.interface is set: NCCL
// reads NCCL_SOCKET_IFNAME instead.
std::unique_ptr<runtime::Communicator> ConnectNccl(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options,
    std::unique_ptr<codegen::TargetCompiler> compiler = nullptr);

}  // namespace fusor::cuda
