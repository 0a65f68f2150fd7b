#pragma once

#include <memory>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// Allocates zeroed, already faulted pages; huge pages if the system provides
// them. Page faults and TLB misses of large activations cost PyTorch up to a
// third of a step. `threads` threads touch the pages. Throws kOutOfMemory.
std::unique_ptr<runtime::Memory> AllocateMemory(size_t bytes, int threads);

}  // namespace fusor::cpu
