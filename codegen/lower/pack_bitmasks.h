#pragma once

#include "codegen/lower/lowered_kernel.h"
#include "ir/graph.h"

namespace fusor::codegen {

// Sets KernelBuffer::packed of every bool tensor that only fusions access, and
// only by whole bytes. Skips inputs and outputs of the graph unless `interface`
// is set. A step run alone needs `interface` to get the kernel that it has in
// its program.
void PackBitmasks(const ir::Graph& graph, LoweredNodes& lowered,
                  bool interface = false);

// Returns whether a kernel reads the value as a bitmask.
bool IsReadPacked(const ir::Value& value, const LoweredNodes& lowered);

}  // namespace fusor::codegen
