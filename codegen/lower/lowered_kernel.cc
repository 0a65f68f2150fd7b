#include "codegen/lower/lowered_kernel.h"

#include <utility>

#include "codegen/kernel/race_detector.h"

namespace fusor::codegen {

LoweredKernel OneBufferPerTensor(Kernel kernel, const ir::Graph& body) {
  LoweredKernel lowered;
  lowered.kernel = std::move(kernel);
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    lowered.operand_spans.push_back({static_cast<int>(i)});
  }
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    lowered.result_spans.push_back({static_cast<int>(i)});
  }
  return lowered;
}

void CheckResults(const LoweredKernel& lowered) {
  std::vector<bool> padded;
  for (const auto* spans : {&lowered.operand_spans, &lowered.result_spans}) {
    for (const std::vector<int>& span : *spans) {
      padded.push_back(span.size() > 1);
    }
  }
  CheckResults(lowered.kernel, padded);
}

}  // namespace fusor::codegen
