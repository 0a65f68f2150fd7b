#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Sets KernelBuffer::packed of every bool that fusions alone write and read,
// all of them by whole bytes, and that is no input or output of the graph -
// or, with `interface`, may be one: a step alone then runs the kernel that it
// has in its program.
void PackBitmasks(const ir::Graph& graph, LoweredNodes& lowered,
                  bool interface = false);

// Whether the kernels that read the value take it packed.
bool IsReadPacked(const ir::Value& value, const LoweredNodes& lowered);

}  // namespace fusor::codegen
