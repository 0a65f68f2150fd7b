#pragma once

#include <string>

namespace fusor::runtime {

// Returns the share, 0 to 1, of the last ten seconds in which some task of this
// host waited for a processor; 0 if the kernel does not report it (no
// /proc/pressure/cpu). `root` is prefixed to /proc, for tests.
double CpuPressure(const std::string& root = "");

}  // namespace fusor::runtime
