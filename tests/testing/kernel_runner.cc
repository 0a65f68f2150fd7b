#include "tests/testing/kernel_runner.h"

#include <unordered_map>

#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_ir.h"
#include "codegen/lower/lower.h"
#include "codegen/plan/plan.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

using Bytes = std::vector<unsigned char>;

int64_t Padded(int64_t bytes) {
  return (bytes + codegen::kBufferAlignment - 1) / codegen::kBufferAlignment *
         codegen::kBufferAlignment;
}

// Allocates a buffer whose members are contiguous, each padded to the
// alignment.
Bytes Allocate(const std::vector<ir::TensorType>& members) {
  int64_t bytes = 0;
  for (const ir::TensorType& type : members) bytes += Padded(type.num_bytes());
  return Bytes(bytes);
}

std::vector<ir::Tensor> RunFusion(const ir::Node& node,
                                  std::span<const ir::Tensor* const> inputs,
                                  const ir::Target& target) {
  const codegen::LoweredKernel lowered = codegen::LowerFusion(node, target);
  codegen::Verify(lowered.kernel);
  codegen::CheckResults(lowered);
  std::vector<Bytes> storage;
  for (const auto& span : lowered.operand_spans) {
    std::vector<ir::TensorType> types;
    for (int i : span) types.push_back(node.input(i)->type());
    storage.push_back(Allocate(types));
    int64_t offset = 0;
    for (int i : span) {
      ir::StoreTensor({node.input(i)->type(), inputs[i]->data},
                      storage.back().data() + offset);
      offset += Padded(node.input(i)->type().num_bytes());
    }
  }
  for (const auto& span : lowered.result_spans) {
    std::vector<ir::TensorType> types;
    for (int i : span) types.push_back(node.output(i)->type());
    storage.push_back(Allocate(types));
  }
  for (size_t b = storage.size(); b < lowered.kernel.buffers.size(); ++b) {
    const codegen::KernelBuffer& buffer = lowered.kernel.buffers[b];
    storage.push_back(Bytes(buffer.elements * DTypeSize(buffer.dtype)));
  }
  std::vector<void*> pointers;
  for (Bytes& bytes : storage) pointers.push_back(bytes.data());
  codegen::InterpretKernel(lowered.kernel, pointers.data());
  std::vector<ir::Tensor> results(node.num_outputs());
  for (size_t b = 0; b < lowered.result_spans.size(); ++b) {
    int64_t offset = 0;
    for (int i : lowered.result_spans[b]) {
      const ir::TensorType& type = node.output(i)->type();
      results[i] = ir::LoadTensor(
          type, storage[lowered.operand_spans.size() + b].data() + offset);
      offset += Padded(type.num_bytes());
    }
  }
  return results;
}

}  // namespace

std::vector<ir::Tensor> RunWithKernels(const ir::Graph& graph,
                                       std::span<const ir::Tensor> inputs,
                                       const ir::Target& target,
                                       const FusionVisitor& visit) {
  std::unordered_map<const ir::Value*, ir::Tensor> values;
  std::unordered_map<const ir::Value*, size_t> left;  // uses left
  for (size_t i = 0; i < inputs.size(); ++i) values[graph.input(i)] = inputs[i];
  for (const auto& node : graph.nodes()) {
    for (const ir::Value* input : node->inputs()) ++left[input];
  }
  for (const ir::Output& output : graph.outputs()) ++left[output.value];
  for (const auto& node : graph.nodes()) {
    std::vector<const ir::Tensor*> operands;
    for (const ir::Value* input : node->inputs()) {
      operands.push_back(&values.at(input));
    }
    std::vector<ir::Tensor> results = ir::IsKernelFusion(*node)
                                          ? RunFusion(*node, operands, target)
                                          : InterpretCall(*node, operands);
    if (visit && ir::IsKernelFusion(*node)) visit(*node, operands, results);
    for (const ir::Value* input : node->inputs()) {
      if (--left[input] == 0) values.erase(input);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      values[node->output(i)] = std::move(results[i]);
    }
  }
  std::vector<ir::Tensor> outputs;
  for (const ir::Output& output : graph.outputs()) {
    outputs.push_back(values.at(output.value));
  }
  return outputs;
}

}  // namespace fusor::test
