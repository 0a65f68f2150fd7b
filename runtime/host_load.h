#pragma once

#include <string>

namespace fusor::runtime {

// The share, 0 to 1, of the last ten seconds in which some task of this host
// waited for a processor; 0 where the kernel does not say (no
// /proc/pressure/cpu). `root` stands before /proc, for tests.
double CpuPressure(const std::string& root = "");

}  // namespace fusor::runtime
