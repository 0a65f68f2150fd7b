#pragma once

// Kernel IR as CUDA C++: text alone, no toolkit. A task is a block of threads,
// a phase a launch. Threads of a block, x fastest:
//   x  the lanes of the vector axis, Kernel::width of them each
//   y  the rows of the block axis
// All threads take every turn of every loop, masked where the vector axis ends
// early: barriers are met by all. What one thread alone stores is stored behind
// a barrier, so that the result may lie over an operand that all have read.
// Reductions are the trees that kernel_ir.h tells, without atomics.

#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// How a phase is launched. Its arguments are pointers to Kernel::buffers, each
// aligned to 16 bytes.
struct CudaLaunch {
  std::string entry;  // "fusor_p0"
  int64_t blocks = 1;
  int threads = 1;
  bool operator==(const CudaLaunch&) const = default;
};

// One a phase.
std::vector<CudaLaunch> CudaLaunches(const Kernel& kernel);

// A translation unit with the entries of all phases as extern "C" functions;
// deterministic, the same for kernels of one identity. It begins with a comment
// with KernelStamp.
// REQUIRES: Verify accepts the kernel.
std::string PrintCuda(const Kernel& kernel);

// Another one whenever the same kernel IR may give other text: for cache keys.
std::string CudaTextRevision();

}  // namespace fusor::codegen
