#pragma once

#include <functional>
#include <memory>

#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// Wraps a communicator to call `begins` whenever a collective is started.
// Collectives of a captured graph count once, at capture.
std::unique_ptr<Communicator> CountCollectives(
    std::unique_ptr<Communicator> communicator, std::function<void()> begins);

}  // namespace fusor::runtime
