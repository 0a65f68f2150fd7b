#pragma once

#include <unordered_map>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"

namespace fusor::codegen {

// The kernel of a fusion node. Order of the kernel's buffers: operands,
// results, scratch.
struct LoweredKernel {
  Kernel kernel;

  // Result `result` may alias operand `operand` (indices of the node): the same
  // task reads each element for the last time before, or when, it writes it.
  struct Alias {
    int operand;
    int result;
  };
  std::vector<Alias> in_place;

  // The node's operands and results in each kernel buffer that is not scratch.
  // A buffer holds one tensor, except in "multi_tensor" fusions: there it may
  // span several tensors, contiguous in this order, each padded to
  // kBufferAlignment bytes. The same applies to cached weight casts.
  std::vector<std::vector<int>> operand_spans;
  std::vector<std::vector<int>> result_spans;
};

using LoweredNodes = std::unordered_map<const ir::Node*, LoweredKernel>;

// Returns the kernel without aliases. REQUIRES: its buffers are the inputs and
// the outputs of the body, then scratch.
LoweredKernel OneBufferPerTensor(Kernel kernel, const ir::Graph& body);

// Calls CheckResults of race_detector.h with the padded buffers of the kernel.
void CheckResults(const LoweredKernel& lowered);

}  // namespace fusor::codegen
