#pragma once

#include <string>
#include <vector>

namespace fusor::cuda {

// Describes the driver, cuDNN, cuBLASLt and NCCL, one line each: the version,
// or what is missing and what that means.
std::vector<std::string> DescribeLibraries();

// Returns the number of devices that the driver offers; 0 without a driver.
int CountDevices();

}  // namespace fusor::cuda
