#pragma once

#include <cstddef>
#include <string>

namespace fusor::cpu {

// Bytes that this process may still allocate without swapping or being killed:
// what the kernel calls available, and what the control groups of this process
// leave. `root` stands before /proc and /sys, for tests.
size_t FreeBytes(const std::string& root = "");

}  // namespace fusor::cpu
