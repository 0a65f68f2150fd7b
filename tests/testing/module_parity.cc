#include "tests/testing/module_parity.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/interpreter/host_tensor.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::test {
namespace {

// Returns the outputs by name. For a training step, returns only the loss and
// the gradients, which do not depend on hyper-parameters.
std::map<std::string, ir::Tensor> Interpreted(const ir::Graph& graph,
                                              std::vector<ir::Tensor> inputs,
                                              const ModuleRun& run) {
  const auto program = graph.Clone();
  if (run.train) {
    const BareTarget target;
    passes::PassContext context(target, run.options.passes);
    passes::RunPipeline(*program, context, passes::Stage::kForward);
    passes::RunPipeline(*program, context, passes::Stage::kTraining);
  }
  for (size_t i = inputs.size(); i < program->inputs().size(); ++i) {
    const ir::TensorType& type = program->input(i)->type();
    inputs.push_back({type, std::vector<double>(type.num_elements(), 0)});
  }
  const auto results = ir::Interpret(*program, inputs, ir::EvalMode::kTyped);
  std::map<std::string, ir::Tensor> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string& name = program->outputs()[i].name;
    if (!run.train || name == "loss" || name.starts_with("grad/")) {
      outputs[name] = results[i];
    }
  }
  return outputs;
}

}  // namespace

void ExpectAsInterpreted(std::string_view text, ModuleRun run) {
  SCOPED_TRACE(text);
  ExpectAsInterpreted(ParseOrDie(text), std::move(run));
}

void ExpectAsInterpreted(std::unique_ptr<ir::Graph> graph, ModuleRun run) {
  std::vector<ir::Tensor> inputs = inspect::DrawInputs(*graph, 7);
  std::vector<std::pair<std::string, ir::InputRole>> names;
  for (size_t i = 0; i < inputs.size(); ++i) {
    names.emplace_back(graph->input(i)->name(), graph->inputs()[i].role);
    const auto first = run.first.find(names.back().first);
    if (first != run.first.end()) inputs[i].data[0] = first->second;
  }
  run.options.verification = passes::Verification::kAll;
  run.options.kernel_cache.clear();
  run.options.passes.keep_gradients = true;
  const auto expected = Interpreted(*graph, inputs, run);
  runtime::Session session(runtime::LoadBackend("cpu"), {.threads = 2});
  runtime::Program& program = session.Compile(
      std::move(graph),
      run.train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval,
      run.options);
  for (int step = 0; step < 2; ++step) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& [name, role] = names[i];
      const auto bytes = ir::TensorBytes(inputs[i]);
      if (ir::IsState(role)) {
        if (session.state().Has(name)) {
          session.state().WriteBytes(name, bytes);
        }
      } else if (program.HasInput(name)) {
        program.SetInput(program.FindInput(name), bytes.data(), bytes.size());
      }
    }
    program.Run();
  }
  for (const auto& [name, want] : expected) {
    if (!run.only.empty() && name != run.only) continue;
    const ir::Tensor got = program.Read(program.FindOutput(name));
    EXPECT_LE(MaxRelativeError(got, want), run.tolerance) << name;
  }
}

}  // namespace fusor::test
