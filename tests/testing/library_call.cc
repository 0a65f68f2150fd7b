#include "tests/testing/library_call.h"

#include <cstring>

#include "ir/graph.h"
#include "ir/interpreter.h"
#include "ir/tensor_bytes.h"

namespace fusor::test {

void RunLibraryCall(const codegen::LibraryCall& call, void* const* args) {
  ir::Graph graph;
  std::vector<ir::Value*> operands;
  std::vector<ir::Tensor> tensors;
  for (const ir::TensorType& type : call.operands) {
    tensors.push_back(ir::LoadTensor(type, args[operands.size()]));
    operands.push_back(graph.AddInput(type, ir::InputRole::kData, ""));
  }
  ir::Node* node = graph.AddNode(call.op, operands, call.attrs);
  for (size_t i = 0; i < call.results.size(); ++i) {
    node->output(i)->set_type(call.results[i]);
  }
  std::vector<const ir::Tensor*> pointers;
  for (const ir::Tensor& tensor : tensors) pointers.push_back(&tensor);
  const auto results = ir::InterpretNode(*node, pointers, ir::EvalMode::kTyped);
  void* const* result = args + operands.size();
  if (call.workspace_bytes > 0) {
    std::memset(result[results.size()], 0xee, call.workspace_bytes);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    ir::StoreTensor(results[i], result[i]);
  }
}

}  // namespace fusor::test
