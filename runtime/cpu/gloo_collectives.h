#pragma once

#include <memory>

#include "runtime/distributed/tcp_store.h"
#include "runtime/distributed/threaded_communicator.h"

namespace fusor::cpu {

// Connects all ranks of the store through Gloo's TCP transport, each with each.
// Throws kPeerLost when they do not find each other in time, kUsage for an
// interface that is not there.
std::unique_ptr<runtime::ThreadedCollectives> ConnectGloo(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options);

}  // namespace fusor::cpu
