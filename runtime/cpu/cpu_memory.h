#pragma once

#include <memory>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// Zeroed memory whose pages exist, huge ones where the system gives them:
// faults and TLB misses of large activations cost PyTorch up to a third of a
// step. Pages are touched by `threads` threads. Throws kOutOfMemory.
std::unique_ptr<runtime::Memory> AllocateMemory(size_t bytes, int threads);

}  // namespace fusor::cpu
