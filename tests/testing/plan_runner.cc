#include "tests/testing/plan_runner.h"

#include <cstring>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "passes/passes.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

using codegen::Buffer;
using codegen::Plan;
using codegen::Step;

class HostMemory {
 public:
  explicit HostMemory(const Plan& plan) : plan_(plan) {
    // 0xff bytes are NaN in every float type, and all bits set as an integer.
    for (const codegen::Arena& arena : plan.arenas) {
      arenas_.emplace_back(arena.bytes + codegen::kBufferAlignment, 0xff);
    }
  }

  uint8_t* At(int buffer) {
    const Buffer& b = plan_.buffers[buffer];
    return arenas_[b.arena].data() + b.offset;
  }

  std::span<uint8_t> Bytes(int buffer) {
    return {At(buffer), static_cast<size_t>(plan_.buffers[buffer].bytes)};
  }

 private:
  const Plan& plan_;
  std::vector<std::vector<uint8_t>> arenas_;
};

}  // namespace

codegen::LoweredNodes LowerAll(const ir::Graph& graph,
                               const ir::Target& target) {
  codegen::LoweredNodes lowered;
  for (const auto& node : graph.nodes()) {
    if (!ir::IsKernelFusion(*node)) continue;
    lowered.emplace(node.get(), codegen::LowerFusion(*node, target));
  }
  return lowered;
}

Planned FuseAndPlan(const ir::Graph& graph,
                    const codegen::TargetCompiler& compiler,
                    const codegen::PlanOptions& options) {
  Planned planned;
  planned.graph = graph.Clone();
  passes::PassOptions pass_options;
  pass_options.eager_rounding = true;
  passes::PassContext context(compiler, pass_options);
  passes::Fuse(*planned.graph, context);
  passes::FuseUpdates(*planned.graph, context);
  planned.lowered = LowerAll(*planned.graph, compiler.target());
  codegen::PackBitmasks(*planned.graph, planned.lowered);
  planned.plan =
      codegen::BuildPlan(*planned.graph, planned.lowered, compiler, options);
  return planned;
}

std::vector<ir::Tensor> RunPlan(const Plan& plan,
                                std::span<const ir::Tensor> inputs) {
  HostMemory memory(plan);
  for (const Plan::Constant& constant : plan.constants) {
    std::memcpy(memory.At(constant.buffer), constant.bytes.data(),
                constant.bytes.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    ir::StoreTensor(inputs[i], memory.Bytes(plan.inputs[i].buffer));
  }
  for (const Step& step : plan.steps) {
    std::vector<void*> pointers;
    for (int arg : step.args) pointers.push_back(memory.At(arg));
    if (step.kind != codegen::StepKind::kLaunch) {
      RunLibraryCall(plan.calls[step.index], pointers.data());
      continue;
    }
    codegen::InterpretKernel(plan.kernels[step.index].kernel, pointers.data());
  }
  std::vector<ir::Tensor> outputs;
  for (const codegen::PlanOutput& output : plan.outputs) {
    outputs.push_back(ir::LoadTensor(plan.buffers[output.buffer].type,
                                     memory.Bytes(output.buffer)));
  }
  return outputs;
}

}  // namespace fusor::test
