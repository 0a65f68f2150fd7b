#pragma once

#include <unordered_map>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"

namespace fusor::codegen {

// A fusion node as a kernel. Kernel buffers stand in the order: operands,
// results, scratch.
struct LoweredKernel {
  Kernel kernel;

  // Result `result` may be written over operand `operand` (indices of the
  // node): every element is read for the last time before, or as, it is
  // written, by the same task.
  struct Alias {
    int operand;
    int result;
  };
  std::vector<Alias> in_place;

  // The node's operands and results behind each kernel buffer that is not
  // scratch: one each, but for a "multi_tensor" fusion, where a buffer spans
  // several tensors that lie one after the other in this order, each padded to
  // kBufferAlignment bytes; copies of weights are one each there, or span
  // several tensors as well.
  std::vector<std::vector<int>> operand_spans;
  std::vector<std::vector<int>> result_spans;
};

using LoweredNodes = std::unordered_map<const ir::Node*, LoweredKernel>;

// CheckResults of race_detector.h for the kernel, with the padding of its
// buffers.
void CheckResults(const LoweredKernel& lowered);

}  // namespace fusor::codegen
