#include "runtime/cpu/library_calls.h"

#include <string>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// Interprets the call in typed mode.
class ReferenceExecutable final : public CpuExecutable {
 public:
  explicit ReferenceExecutable(const LibraryCall& call)
      : CpuExecutable(call),
        graph_(call.body != nullptr
                   ? call.body->Clone()
                   : ir::OneOpGraph(call.op, call.attrs, call.operands,
                                    call.results)) {}

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
  const LibraryPlan plan = PlanLibraryCall(call, false);
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
