// Your own models, from ir::Builder to training steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/fusor.h"
#include "tests/examples/mlp.h"
#include "tests/examples/small_cnn.h"
#include "tests/testing/numeric.h"
#include "tests/testing/step_parity.h"

namespace fusor::examples {
namespace {

using ir::Tensor;

struct Example {
  std::string name;
  std::function<std::unique_ptr<ir::Graph>()> build;
  ir::Shape x;
  int64_t classes;
};

// Returns noise. In each sample, a range of elements that depends on the label
// is increased.
Tensor SeparableX(const Example& example, const Tensor& labels) {
  Tensor x = test::RandomTensor({ir::DType::kF32, example.x, {}}, 1);
  const size_t each = x.data.size() / labels.data.size();
  const size_t share = each / static_cast<size_t>(example.classes);
  for (size_t i = 0; i < labels.data.size(); ++i) {
    const size_t begin = i * each + static_cast<size_t>(labels.data[i]) * share;
    for (size_t k = 0; k < share; ++k) x.data[begin + k] += 0.5;
  }
  return x;
}

class OwnModel : public ::testing::TestWithParam<Example> {
 protected:
  const Tensor labels_ =
      test::RandomTensor({ir::DType::kI32, {GetParam().x[0]}, {}}, 2, 0,
                         static_cast<double>(GetParam().classes));
  const Tensor x_ = SeparableX(GetParam(), labels_);
  const float lr_ = 0.1f;
};

TEST_P(OwnModel, LearnsABatchByHeart) {
  runtime::Session session(runtime::LoadBackend("cpu"), {});
  runtime::Program& program =
      session.Compile(GetParam().build(), codegen::ProgramKind::kTrain, {});
  session.state().Initialize(/*seed=*/3);
  const std::vector<float> x(x_.data.begin(), x_.data.end());
  const std::vector<int32_t> labels(labels_.data.begin(), labels_.data.end());
  program.SetInput(program.FindInput("x"), x.data(), x.size() * sizeof(float));
  program.SetInput(program.FindInput("labels"), labels.data(),
                   labels.size() * sizeof(int32_t));
  program.SetInput(program.FindInput("lr"), &lr_, sizeof(lr_));
  const auto step = [&] {
    program.Run();
    return program.ReadScalar(program.FindOutput("loss"));
  };
  const double first = step();
  double last = first;
  for (int i = 0; i < 60; ++i) last = step();
  EXPECT_LT(last, 0.2 * first);
}

TEST_P(OwnModel, GradientsAndNextStateAreTheInterpreters) {
  passes::PassOptions options;
  options.keep_gradients = true;  // adds outputs "grad/<parameter>"
  test::StepParity steps(runtime::LoadBackend("cpu"), GetParam().build,
                         options);
  const int train = steps.AddProgram(codegen::ProgramKind::kTrain);
  steps.InitializeState(/*seed=*/3);
  steps.Feed("x", x_);
  steps.Feed("labels", labels_);
  steps.Feed("lr", {{ir::DType::kF32, {}, {}}, {lr_}});
  steps.Step(train);
  steps.ExpectAgreement(1e-4);
  const auto& outputs = steps.program(train).plan().outputs;
  EXPECT_GE(std::count_if(outputs.begin(), outputs.end(),
                          [](const codegen::PlanOutput& output) {
                            return output.name.starts_with("grad/");
                          }),
            8);
}

INSTANTIATE_TEST_SUITE_P(
    Examples, OwnModel,
    ::testing::Values(Example{"Mlp", [] { return BuildMlp({}); }, {32, 16}, 4},
                      Example{"SmallCnn",
                              [] { return BuildSmallCnn({}); },
                              {16, 1, 16, 16},
                              4}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace fusor::examples
