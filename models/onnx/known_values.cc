#include "models/onnx/known_values.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fusor::models {

void KnownValues::Set(const ir::Value* input, ir::Tensor tensor) {
  if (tensor.type.num_elements() > kMaxKnown) return;
  known_.insert_or_assign(input, std::move(tensor));
}

const ir::Tensor* KnownValues::Find(const ir::Value* value) {
  for (; next_ < graph_.nodes().size(); ++next_) {
    const ir::Node& node = *graph_.nodes()[next_];
    bool small = true;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      small = small && node.output(i)->type().num_elements() <= kMaxKnown;
    }
    std::vector<const ir::Tensor*> operands;
    for (const ir::Value* operand : node.inputs()) {
      const auto found = known_.find(operand);
      if (found != known_.end()) operands.push_back(&found->second);
    }
    if (!small || operands.size() != node.num_inputs()) continue;
    std::vector<ir::Tensor> results =
        InterpretNode(node, operands, ir::EvalMode::kTyped);
    for (size_t i = 0; i < results.size(); ++i) {
      known_.emplace(node.output(i), std::move(results[i]));
    }
  }
  const auto found = known_.find(value);
  return found == known_.end() ? nullptr : &found->second;
}

}  // namespace fusor::models
