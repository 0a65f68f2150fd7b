#pragma once

#include "runtime/distributed/socket.h"

namespace fusor::test {

// Returns a free TCP port of this host.
inline int FreePort() { return runtime::Socket::Listen("127.0.0.1", 0).port(); }

}  // namespace fusor::test
