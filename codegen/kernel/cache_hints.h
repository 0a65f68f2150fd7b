#pragma once

// L2 cache hints of GPU kernels.
//
// A tensor larger than L2 is evicted before the next kernel can read it again,
// and itself evicts data with reuse: scales, sums, small tensors. Accesses to
// it are marked evict-first (Stmt::streamed).
//
// After a phase that reduces a tensor, L2 holds the end of each task's part of
// it. The phase that reads the tensor again starts there: its loops run from
// the last index to the first.

#include "codegen/kernel/kernel_ir.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Sets Stmt::streamed of the last access to a buffer if it touches each element
// exactly once and is
//   - a load of a tensor larger than the target's L2, or
//   - a load or store of a bitmask of any size, which is read once, in the
//     backward pass.
// Other stores stay as they are: the next kernel reads the result.
//
// Sets Stmt::descending of loops of the last phase whose iterations are
// independent and that load what an earlier phase accessed with the same index.
//
// Does nothing for a CPU.
void SetCacheHints(const ir::Target& target, Kernel& kernel);

}  // namespace fusor::codegen
