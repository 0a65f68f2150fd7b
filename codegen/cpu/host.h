#pragma once

// The machine that runs the CPU backend: its instruction set and threads.

#include <string_view>

#include "ir/dtype.h"

namespace fusor::cpu {

// Instruction set of fusor's own library calls.
enum class VectorIsa { kPlain, kAvx2, kAvx512 };

// Returns whether they know elements of this dtype: f32 or bf16.
bool HasOwnCalls(ir::DType dtype);

// Returns the widest one of this machine. kAvx2 includes FMA; kAvx512 includes
// F, BW, VL and DQ.
VectorIsa WidestIsa();

// Returns "plain", "avx2" or "avx512".
std::string_view IsaName(VectorIsa isa);

// While it lives, OpenMP regions of the calling thread, including oneDNN's,
// have `threads` threads. Enters no region itself.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int saved_;
};

}  // namespace fusor::cpu
