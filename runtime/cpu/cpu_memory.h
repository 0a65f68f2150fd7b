#pragma once

#include <memory>
#include <string>

#include "runtime/backend.h"

namespace fusor::cpu {

// Bytes that this process may still allocate without swapping or being killed:
// what the kernel calls available, and what the control groups of this process
// leave. `root` stands before /proc and /sys, for tests.
size_t FreeBytes(const std::string& root = "");

// Zeroed memory whose pages exist, huge ones where the system gives them:
// faults and TLB misses of large activations cost PyTorch up to a third of a
// step. Pages are touched by `threads` threads. Throws kOutOfMemory.
std::unique_ptr<runtime::Memory> AllocateMemory(size_t bytes, int threads);

}  // namespace fusor::cpu
