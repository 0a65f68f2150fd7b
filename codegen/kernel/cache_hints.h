#pragma once

// How a GPU's kernel tells the L2 cache what it needs again.
//
// A tensor larger than the cache is gone from it before the next kernel could
// read it again, and takes the place of what others read again: scales, sums,
// small tensors. Such accesses are streamed.
//
// A phase that sums up a tensor leaves the end of each task's part of it in the
// cache. The phase that reads it again therefore begins there: its loops run
// from their last index to the first.

#include "codegen/kernel/kernel_ir.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Sets Stmt::streamed of the kernel's last load of each tensor that is larger
// than the target's L2, where it loads each element once; and, of whatever
// size, of the last load and of the stores of packed bools, which wait for the
// backward pass and are read there once. Stores of other results are left: the
// next kernel reads them.
//
// Sets Stmt::descending of the last phase's loops that read what an earlier
// phase has read, or stored, in the same order.
//
// Sets nothing on a CPU.
void SetCacheHints(const ir::Target& target, Kernel& kernel);

}  // namespace fusor::codegen
