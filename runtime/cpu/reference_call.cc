#include "runtime/cpu/reference_call.h"

#include <vector>

#include "ir/graph.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::cpu {
namespace {

class ReferenceExecutable : public LibraryExecutable {
 public:
  explicit ReferenceExecutable(const codegen::LibraryCall& call)
      : graph_("reference") {
    std::vector<ir::Value*> operands;
    for (const ir::TensorType& type : call.operands) {
      operands.push_back(graph_.AddInput(type, ir::InputRole::kData, "x"));
    }
    const ir::Node* node = graph_.AddNode(call.op, operands, call.attrs);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      node->output(i)->set_type(call.results[i]);
      graph_.AddOutput(node->output(i), "y" + std::to_string(i));
    }
  }

  void Load() override {}

  void Run(void* const* args) override {
    std::vector<ir::Tensor> inputs;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      inputs.push_back(ir::LoadTensor(graph_.input(i)->type(), args[i]));
    }
    const std::vector<ir::Tensor> results =
        ir::Interpret(graph_, inputs, ir::EvalMode::kTyped);
    for (size_t i = 0; i < results.size(); ++i) {
      ir::StoreTensor(results[i], args[inputs.size() + i]);
    }
  }

  const std::string& implementation() const override { return name_; }
  int64_t workspace_bytes() const override { return 0; }

 private:
  ir::Graph graph_;
  std::string name_ = "reference";
};

}  // namespace

std::unique_ptr<LibraryExecutable> MakeReferenceExecutable(
    const codegen::LibraryCall& call) {
  return std::make_unique<ReferenceExecutable>(call);
}

}  // namespace fusor::cpu
