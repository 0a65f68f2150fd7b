#include "runtime/session.h"

#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "ir/interpreter.h"
#include "ir/physical.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "runtime/backend_loader.h"
#include "runtime/initialize.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::runtime {
namespace {

// Initial values of an input; random where it has none.
ir::Tensor Start(const ir::Input& input, uint64_t seed, int64_t classes) {
  const ir::TensorType type{
      input.value->type().dtype, input.value->type().shape, {}};
  if (input.value->name() == "lr") return test::MakeTensor(type, {0.05});
  if (input.value->name() == "labels") {
    return test::RandomTensor(type, seed, 0, static_cast<double>(classes));
  }
  if (!IsState(input.role)) return test::RandomTensor(type, seed, 0, 255);
  const auto values = InitialValues(input.attrs, type.num_elements(),
                                    input.value->name(), seed);
  return {type, {values.begin(), values.end()}};
}

void ExpectStepEqualsInterpreter(const std::string& arch,
                                 const models::ModelOptions& options,
                                 const codegen::CompileOptions& compile,
                                 double tolerance) {
  models::Model model =
      models::BuildModel(arch, models::Phase::kTrain, options);
  const auto reference = model.graph->Clone();
  const test::BareTarget queries;
  passes::PassContext context(queries, {});
  passes::RunPipeline(*reference, context, passes::Stage::kForward);
  passes::RunPipeline(*reference, context, passes::Stage::kTraining);
  std::vector<ir::Tensor> inputs;
  for (const ir::Input& input : reference->inputs()) {
    inputs.push_back(Start(input, 7, options.num_classes));
  }
  const auto expected = ir::Interpret(*reference, inputs, ir::EvalMode::kExact);

  Session session(LoadBackend("cpu"), {});
  const int program = session.AddProgram(std::move(model.graph),
                                         codegen::ProgramKind::kTrain, compile);
  for (size_t i = 0; i < reference->inputs().size(); ++i) {
    const ir::Input& input = reference->inputs()[i];
    if (IsState(input.role)) {
      session.WriteState(
          input.value->name(),
          std::vector<float>(inputs[i].data.begin(), inputs[i].data.end()));
      continue;
    }
    std::vector<char> bytes(static_cast<size_t>(inputs[i].type.num_bytes()));
    ir::ToMemory(inputs[i], bytes.data());
    session.SetInput(program, session.FindInput(program, input.value->name()),
                     bytes.data(), bytes.size());
  }
  session.Step(program);
  for (size_t i = 0; i < reference->outputs().size(); ++i) {
    const ir::Output& output = reference->outputs()[i];
    ir::Tensor actual{expected[i].type, {}};
    if (output.alias >= 0) {
      const std::string& name = reference->input(output.alias)->name();
      const auto values = session.ReadState(name);
      actual.data.assign(values.begin(), values.end());
      // Of parameters, what the step changed.
      ir::Tensor before = inputs[output.alias];
      ir::Tensor change = expected[i];
      for (size_t k = 0; k < actual.data.size(); ++k) {
        actual.data[k] -= before.data[k];
        change.data[k] -= before.data[k];
      }
      EXPECT_LT(test::MaxRelativeError(actual, change), tolerance)
          << arch << " " << name;
      continue;
    }
    actual =
        session.ReadOutput(program, session.FindOutput(program, output.name));
    EXPECT_LT(test::MaxRelativeError(actual, expected[i]), tolerance)
        << arch << " " << output.name;
  }
}

TEST(Session, CifarStepEqualsTheInterpreter) {
  ExpectStepEqualsInterpreter("resnet20-cifar",
                              {.batch = 8, .image_size = 32, .num_classes = 10},
                              {.verify = true}, 2e-2);
}

TEST(Session, UnfusedCifarStepEqualsTheInterpreter) {
  codegen::CompileOptions options{.verify = true};
  options.passes.fusion = false;
  ExpectStepEqualsInterpreter("resnet20-cifar",
                              {.batch = 8, .image_size = 32, .num_classes = 10},
                              options, 2e-2);
}

TEST(Session, ResNet50StepEqualsTheInterpreter) {
  ExpectStepEqualsInterpreter("resnet50",
                              {.batch = 4, .image_size = 64, .num_classes = 10},
                              {.verify = true}, 0.5);
}

}  // namespace
}  // namespace fusor::runtime
