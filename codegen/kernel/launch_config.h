#pragma once

// How a GPU's blocks of threads are cut out of a kernel's loops; see Kernel in
// kernel_ir.h. One thread accesses 16 bytes at once of the narrowest tensor, or
// as near as it comes.

#include <cstdint>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Threads of a block; several blocks share a multiprocessor.
inline constexpr int64_t kBlockThreads = 256;
// Elements that the threads of a reduction's block look at in one turn of its
// innermost loop. The reduction tree is cut by this, not by the threads: it is
// the same whatever types are read.
inline constexpr int64_t kBlockElements = 1024;
// Blocks that fill a multiprocessor.
inline constexpr int64_t kBlocksPerMultiprocessor = 8;

// Elements a thread: 8 where tensors of 16-bit floats, bytes or bools are among
// the buffers, else 4.
int ThreadWidth(const std::vector<KernelBuffer>& buffers);

// The power of two from `extent` on, at least `least` and at most `most`, which
// are powers of two.
int64_t LanesFor(int64_t extent, int64_t least, int64_t most);

// Largest divisor of n that is at most `limit`; 1 where limit is less.
int64_t LargestDivisor(int64_t n, int64_t limit);

}  // namespace fusor::codegen
