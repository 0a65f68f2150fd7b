#pragma once

#include <functional>
#include <memory>

#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// The same communicator, which calls `begins` when a collective is started.
// Those of a captured graph count when they are captured, and not again.
std::unique_ptr<Communicator> CountCollectives(
    std::unique_ptr<Communicator> communicator, std::function<void()> begins);

}  // namespace fusor::runtime
