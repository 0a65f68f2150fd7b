#include "tests/testing/interpreted_session.h"

#include <utility>

#include "ir/support/error.h"
#include "passes/pipeline.h"
#include "runtime/initial_values.h"
#include "tests/testing/bare_target.h"

namespace fusor::test {

int InterpretedSession::AddProgram(std::unique_ptr<ir::Graph> forward,
                                   codegen::ProgramKind kind,
                                   passes::PassOptions options) {
  if (kind == codegen::ProgramKind::kAccumulate) {
    options.micro_batches = passes::MicroBatches::kAdd;
  }
  const BareTarget target;
  passes::PassContext context(target, options);
  RunPipeline(*forward, context, passes::Stage::kForward);
  if (kind != codegen::ProgramKind::kEval) {
    RunPipeline(*forward, context, passes::Stage::kTraining);
  }
  graphs_.push_back(std::move(forward));
  return static_cast<int>(graphs_.size()) - 1;
}

void InterpretedSession::InitializeState(uint64_t seed) {
  for (const auto& graph : graphs_) {
    for (const ir::Input& input : graph->inputs()) {
      if (!IsState(input.role)) continue;
      const std::string& name = input.value->name();
      const ir::TensorType& type = input.value->type();
      const auto values =
          runtime::InitialValues(input.attrs, type.num_elements(), name, seed);
      Set(name, {type, {values.begin(), values.end()}});
    }
  }
}

void InterpretedSession::Set(const std::string& name, ir::Tensor tensor) {
  values_[name] = std::move(tensor);
}

const ir::Tensor& InterpretedSession::Get(const std::string& name) const {
  const auto it = values_.find(name);
  FUSOR_CHECK(it != values_.end(), kGraph, "no input {} has a value", name);
  return it->second;
}

std::map<std::string, ir::Tensor> InterpretedSession::Step(int program) {
  const ir::Graph& graph = *graphs_[program];
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    inputs.push_back(Get(input.value->name()));
  }
  std::vector<ir::Tensor> results = ir::Interpret(graph, inputs, mode_);
  std::map<std::string, ir::Tensor> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const ir::Output& output = graph.outputs()[i];
    const std::string& name =
        output.alias < 0 ? output.name : graph.input(output.alias)->name();
    (output.alias < 0 ? outputs : values_)[name] = std::move(results[i]);
  }
  return outputs;
}

}  // namespace fusor::test
