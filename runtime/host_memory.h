#pragma once

#include <cstddef>
#include <string>

namespace fusor::runtime {

// Bytes of main memory that this process may still allocate without swapping or
// being killed: what the kernel calls available, and what the control groups of
// this process leave. `root` stands before /proc and /sys, for tests.
size_t FreeHostBytes(const std::string& root = "");

}  // namespace fusor::runtime
