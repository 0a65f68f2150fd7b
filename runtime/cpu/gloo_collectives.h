#pragma once

#include <memory>

#include "runtime/distributed/tcp_store.h"
#include "runtime/distributed/threaded_communicator.h"

namespace fusor::cpu {

// Connects each pair of the store's ranks through Gloo's TCP transport. Throws
// kPeerLost on timeout, kUsage if the network interface does not exist.
std::unique_ptr<runtime::ThreadedCollectives> ConnectGloo(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options);

}  // namespace fusor::cpu
