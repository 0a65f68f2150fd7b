#pragma once

#include <memory>

#include "runtime/backend/backend.h"

namespace fusor::cpu {

// The machine's CPU with that many compute threads. Its stream runs everything
// at once on the calling thread and its OpenMP team, so one thread of the
// process makes all calls to the device and to what it creates. The memory of a
// launch's arguments is not checked.
std::unique_ptr<runtime::Device> OpenCpuDevice(int threads);

// "AMD EPYC, avx512 with bf16".
std::string DescribeCpu();

}  // namespace fusor::cpu
