#include "runtime/cpu/library_calls.h"

#include <string>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// Returns the body of a library fusion, otherwise a graph of the call's op.
std::unique_ptr<ir::Graph> GraphOf(const LibraryCall& call) {
  if (call.body != nullptr) return call.body->Clone();
  auto graph = std::make_unique<ir::Graph>("reference");
  std::vector<ir::Value*> operands;
  for (const ir::TensorType& type : call.operands) {
    operands.push_back(graph->AddInput(type, ir::InputRole::kData, "x"));
  }
  const ir::Node* node = graph->AddNode(call.op, operands, call.attrs);
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    node->output(i)->set_type(call.results[i]);
    graph->AddOutput(node->output(i), "y" + std::to_string(i));
  }
  return graph;
}

// Interprets the call in typed mode.
class ReferenceExecutable final : public CpuExecutable {
 public:
  explicit ReferenceExecutable(const LibraryCall& call)
      : CpuExecutable(call), graph_(GraphOf(call)) {}

  void Run(void* const* args) const override {
    std::vector<ir::Tensor> inputs;
    for (size_t i = 0; i < graph_->inputs().size(); ++i) {
      inputs.push_back(ir::LoadTensor(graph_->input(i)->type(), args[i]));
    }
    const std::vector<ir::Tensor> results =
        ir::Interpret(*graph_, inputs, ir::EvalMode::kTyped);
    for (size_t i = 0; i < results.size(); ++i) {
      ir::StoreTensor(results[i], args[inputs.size() + i]);
    }
  }

 private:
  const std::unique_ptr<ir::Graph> graph_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeCallExecutable(const LibraryCall& call) {
  const LibraryPlan plan = PlanLibraryCall(call);
  FUSOR_CHECK(plan.workspace_bytes <= call.workspace_bytes, kDevice,
              "{} by {}: needs a workspace of {} bytes here, compiled for {}",
              call.op_name(), plan.implementation, plan.workspace_bytes,
              call.workspace_bytes);
  return std::visit(
      [&](const auto& method) { return MakeExecutable(call, method); },
      plan.method);
}

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const ReferencePlan&) {
  return std::make_unique<ReferenceExecutable>(call);
}

}  // namespace fusor::cpu
