#pragma once

// Sizes of GPU thread blocks; see Kernel in kernel_ir.h. Aims at 16-byte
// accesses per thread to the narrowest tensor.

#include <cstdint>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Threads per block; several blocks share a multiprocessor.
inline constexpr int64_t kBlockThreads = 256;
// Elements that a thread block reduces per iteration of its innermost loop.
// This, not the number of threads, determines the reduction tree, so that the
// tree does not depend on the dtypes.
inline constexpr int64_t kBlockElements = 1024;
// Blocks needed to occupy a multiprocessor.
inline constexpr int64_t kBlocksPerMultiprocessor = 8;

// Returns the elements per thread: 8 if any buffer of more than one element
// holds 16-bit floats, bytes or bools, otherwise 4.
int ThreadWidth(const std::vector<KernelBuffer>& buffers);

// Returns the least power of two >= extent, clamped to [least, most].
// REQUIRES: `least` and `most` are powers of two.
int64_t LanesFor(int64_t extent, int64_t least, int64_t most);

// Returns the largest divisor of n that is at most `limit`; 1 if limit < 1.
int64_t LargestDivisor(int64_t n, int64_t limit);

}  // namespace fusor::codegen
