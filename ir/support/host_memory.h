#pragma once

#include <cstddef>
#include <string>

namespace fusor::runtime {

// Bytes of main memory that this process may still allocate without swapping or
// being killed: what the kernel calls available, and what the control groups
// and the limits (ulimit -v, ulimit -d) of this process leave. `root` stands
// before /proc and /sys, for tests.
size_t FreeHostBytes(const std::string& root = "");

// Bytes of main memory that this process has now.
size_t ResidentHostBytes(const std::string& root = "");

}  // namespace fusor::runtime
