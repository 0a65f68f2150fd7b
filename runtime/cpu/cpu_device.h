#pragma once

#include <memory>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// Opens the machine's CPU with this number of compute threads. Its stream runs
// work synchronously on the calling thread and its OpenMP team. So one thread
// of the process must make all calls to the device and to objects it creates.
// Launches do not check the memory of their arguments.
std::unique_ptr<runtime::Device> OpenCpuDevice(int threads);

// Returns the model and instruction set: "AMD EPYC, AVX-512 with bf16".
std::string DescribeCpu();

}  // namespace fusor::cpu
