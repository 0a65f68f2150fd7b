#pragma once

#include <memory>

#include "codegen/target_compiler.h"
#include "runtime/backend/communicator.h"
#include "runtime/distributed/tcp_store.h"

namespace fusor::cuda {

// Collectives on this rank's GPU (DeviceOfRank) by NCCL, on a stream of their
// own, of high priority; they can be captured in the graph of a step. Neither
// its beginning nor its end can keep the process: both are polled, and what
// takes longer than options.timeout ends with kPeerLost, as does what a peer or
// the network breaks. No GPU has run this code.
//
// `compiler`, for that GPU, makes the kernels of sums in the order of ranks
// (ordered_reduce.h): REQUIRED if options.deterministic.
//
// Throws kDevice without NCCL, and kUsage for a network interface, which NCCL
// takes from NCCL_SOCKET_IFNAME.
std::unique_ptr<runtime::Communicator> ConnectNccl(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options,
    std::unique_ptr<codegen::TargetCompiler> compiler = nullptr);

}  // namespace fusor::cuda
