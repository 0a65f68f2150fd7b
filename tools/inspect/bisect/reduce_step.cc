#include "tools/inspect/bisect/reduce_step.h"

#include "codegen/compiler.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::runtime {
namespace {

using codegen::TestCase;

// Wraps `body` in a fusion. The kernel is named after its first result, which
// gets the step's name.
std::unique_ptr<ir::Graph> WrapBody(const ir::Graph& body,
                                    const ir::Node& original) {
  auto graph = std::make_unique<ir::Graph>(original.output()->name());
  std::vector<ir::Value*> operands;
  for (const ir::Input& input : body.inputs()) {
    operands.push_back(graph->AddInput(
        input.value->type(), ir::InputRole::kData, input.value->name()));
  }
  auto inner = body.Clone();
  for (ir::Output& output : inner->mutable_outputs()) output.alias = -1;
  ir::Node* fusion =
      graph->AddNode("fusion", operands, original.attrs(), original.location(),
                     nullptr, std::move(inner));
  std::vector<std::string> names;
  for (size_t i = 0; i < fusion->num_outputs(); ++i) {
    names.push_back(i == 0 ? original.output()->name()
                           : "result_" + std::to_string(i));
  }
  graph->RenameResults(fusion, names);
  for (size_t i = 0; i < fusion->num_outputs(); ++i) {
    graph->AddOutput(fusion->output(i), names[i]);
  }
  return graph;
}

}  // namespace

TestCase ReduceStep(const codegen::Plan& plan, const ir::Graph& graph,
                    size_t step, std::span<const ir::Tensor> given,
                    const codegen::TargetCompiler& compiler, Device& device,
                    const IsolateOptions& options) {
  const codegen::Step& s = plan.steps[step];
  const ir::Node* node = NodeOfStep(graph, s);
  const std::vector<ir::Tensor> inputs(given.begin(), given.end());
  const bool chains = IsOp(node, ir::OpKind::kFusion) &&
                      node->attrs().String("kind") == "multi_tensor";
  if (node == nullptr || node->body() == nullptr || chains) {
    return {GraphOfStep(plan, s, node), inputs};
  }
  const auto differs = [&](const TestCase& part) {
    codegen::CompileOptions compile;
    compile.start = codegen::GraphStage::kOptimized;
    compile.pack_interface = true;
    const codegen::CompiledProgram program =
        codegen::Compile(WrapBody(*part.graph, *node),
                         codegen::ProgramKind::kEval, compiler, compile);
    return program.plan.steps.size() == 1 &&
           !CompareStep(program.plan, *program.graph, 0, part.inputs, device,
                        options)
                .ok();
  };
  TestCase whole{node->body()->Clone(),
                 OperandTensors(inputs, InputsOfOperands(plan, s, node))};
  if (!differs(whole)) return {GraphOfStep(plan, s, node), inputs};
  TestCase part = codegen::ReduceCase(whole, differs);
  part.graph = WrapBody(*part.graph, *node);
  return part;
}

}  // namespace fusor::runtime
