#pragma once

// Prints kernel IR as CUDA C++ text; needs no toolkit. A task is a thread
// block, a phase is a launch. Threads of a block, x fastest:
//   x  the lanes of the vector axis, Kernel::width lanes per thread
//   y  the indices of the block axis
// All threads execute every iteration of every loop, masked at the end of the
// vector axis, so that all reach each barrier. A store by one thread follows a
// barrier, because the result may alias an operand that all threads read.
// Reductions are the fixed trees of kernel_ir.h, without atomics.

#include <string>

#include "codegen/cuda/matrix_printer.h"
#include "codegen/cuda/thread_layout.h"
#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Returns a translation unit with all phases' entries as extern "C" functions.
// It starts with a comment that holds KernelStamp. Deterministic: kernels of
// the same identity have the same text. REQUIRES: Verify accepts the kernel.
// `unit`: which instructions multiply matrices.
std::string PrintCuda(const Kernel& kernel, MatrixUnit unit = MatrixUnit::kMma);

// Returns a revision for cache keys. It changes whenever the same kernel IR may
// give different text.
std::string CudaTextRevision();

}  // namespace fusor::codegen
