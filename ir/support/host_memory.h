#pragma once

#include <cstddef>
#include <string>

namespace fusor::runtime {

// Returns the bytes of main memory that this process can still allocate without
// swapping or being killed: the minimum of MemAvailable and of what the control
// groups and limits (ulimit -v, ulimit -d) leave. `root` is a prefix of /proc
// and /sys, for tests.
size_t FreeHostBytes(const std::string& root = "");

// Returns the resident set size of this process in bytes.
size_t ResidentHostBytes(const std::string& root = "");

}  // namespace fusor::runtime
