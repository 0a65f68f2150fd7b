#include "codegen/lower/lowered_kernel.h"

#include "codegen/kernel/race_detector.h"

namespace fusor::codegen {

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
