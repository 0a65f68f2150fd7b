#pragma once

// Which threads of a block have which lanes and elements of a kernel.

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

inline constexpr int kWarp = 32;  // threads

// Returns the number of threads along the lanes.
int ThreadsAlong(const Kernel& kernel, const Phase& phase);

// Launch configuration of a phase. Its arguments are pointers to
// Kernel::buffers, each aligned to 16 bytes.
struct CudaLaunch {
  std::string entry;  // "fusor_p0"
  int64_t blocks = 1;
  int threads = 1;
  int64_t dynamic_bytes = 0;  // of shared memory, per block
  bool operator==(const CudaLaunch&) const = default;
};

// The shared memory of a phase's blocks: its local buffers, then what threads
// exchange in reductions.
struct BlockMemory {
  // Static shared memory that every GPU has.
  static constexpr int64_t kStaticBytes = int64_t{48} << 10;

  std::vector<int64_t> buffers;  // offsets in bytes; -1: not local
  int64_t reductions = 0;        // offset in bytes
  int64_t bytes = 0;

  bool is_dynamic() const { return bytes > kStaticBytes; }
};
BlockMemory MemoryOf(const Kernel& kernel, const Phase& phase);

// Returns one launch per phase.
std::vector<CudaLaunch> CudaLaunches(const Kernel& kernel);

// Returns the alignment, in elements, of the addresses of a thread's lanes
// along that axis.
int64_t AlignedElements(const Kernel& kernel, const Stmt& access,
                        int vector_axis);

}  // namespace fusor::codegen
