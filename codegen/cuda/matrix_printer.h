#pragma once

// The CUDA text of a phase's matrix registers, on tensor cores.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "codegen/kernel/kernel_ir.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// The instructions that multiply: of a warp, mma.sync (sm_80 and later), or of
// a group of four warps, wgmma (sm_90a only). The latter read both factors in
// shared memory, while the threads go on.
enum class MatrixUnit : uint8_t { kMma, kWgmma };

// Returns the faster one of a GPU.
MatrixUnit MatrixUnitOf(const ir::Target& target);

// Returns the place of an element of a factor.
std::string SwizzledIndex(const Index& index);

class MatrixPrinter {
 public:
  // `threads`: of a block.
  MatrixPrinter(const Kernel& kernel, const Phase& phase, int threads,
                MatrixUnit unit);

  // Returns whether a kDot reads the local buffer, so that its elements are
  // where the function Swizzle of the prelude says. Accesses are of at most 16
  // bytes and do not cross a multiple of 16 bytes.
  bool IsFactor(int buffer) const { return factors_.contains(buffer); }

  // Returns how often to unroll a loop that stores factors that it computes, or
  // that adds columns of the result; 0 for other loops, whose unrolling is the
  // compiler's choice. It would use all registers for loads ahead, and then
  // spill. Two loads keep enough in flight.
  int Unroll(const Stmt& loop) const;

  // Return a statement, or several in a line. They must be called in the order
  // of the text.
  std::string Declaration(int reg) const;
  std::string Dot(const Stmt& stmt);
  std::string Store(const Stmt& stmt, std::string_view place);
  // Returns what precedes a barrier; perhaps nothing.
  std::string BeforeBarrier() const;

 private:
  // The warps of a block as a grid over a matrix. Each has tiles of 16 rows and
  // 8 columns.
  struct WarpGrid {
    int64_t rows = 0;
    int64_t columns = 0;
    MatrixUnit unit = MatrixUnit::kMma;
  };
  WarpGrid GridOf(int reg) const;
  bool IsGrouped(int reg) const {
    return GridOf(reg).unit == MatrixUnit::kWgmma;
  }

  const Kernel& kernel_;
  const int64_t warps_;
  const MatrixUnit unit_;
  std::set<int> factors_;  // buffers
  std::set<int> sums_;     // registers to which a kDot adds
  // Registers with products that a barrier waits for. At first these are all
  // sums, because a loop's barrier also waits for the previous iteration.
  std::set<int> pending_;
};

}  // namespace fusor::codegen
