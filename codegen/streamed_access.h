#pragma once

// Which accesses of a GPU's kernel its caches need not keep. A tensor larger
// than the L2 cache is gone from it before the next kernel could read it again,
// and takes the place of what others read again: scales, sums, small tensors.

#include "codegen/kernel_ir.h"
#include "ir/target.h"

namespace fusor::codegen {

// Sets Stmt::streamed of the kernel's last load of each tensor that is larger
// than the target's L2, where it loads each element once; and, of whatever
// size, of the last load and of the stores of packed bools, which wait for the
// backward pass and are read there once. Stores of other results are left: the
// next kernel reads them. Nothing on a CPU.
void MarkStreamed(const ir::Target& target, Kernel& kernel);

}  // namespace fusor::codegen
