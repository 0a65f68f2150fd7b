#pragma once

#include <string>
#include <vector>

namespace fusor::cuda {

// Returns one line each for the driver, cuDNN, cuBLASLt and NCCL: the version,
// or why it is unavailable and what does not work without it.
std::vector<std::string> DescribeLibraries();

// Returns the number of devices that the driver offers; 0 without a driver.
int CountDevices();

}  // namespace fusor::cuda
