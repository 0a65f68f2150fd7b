#pragma once

#include <memory>

#include "runtime/communicator.h"
#include "runtime/ranks/tcp_store.h"

namespace fusor::cuda {

// Collectives on GPU 0's memory by NCCL, on a stream of their own, of high
// priority. Neither its beginning nor its end can keep the process: both are
// polled, and what takes longer than options.timeout ends with kPeerLost, as
// does what a peer or the network breaks. No GPU has run this code.
//
// Throws kDevice without NCCL, kUsage for deterministic sums, which NCCL has
// not, and for a network interface, which NCCL takes from NCCL_SOCKET_IFNAME.
std::unique_ptr<runtime::Communicator> ConnectNccl(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options);

}  // namespace fusor::cuda
