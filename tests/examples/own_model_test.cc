// Models of one's own, from ir::Builder to trained steps.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/examples/mlp.h"
#include "tests/examples/small_cnn.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/numeric.h"

namespace fusor::examples {
namespace {

using ir::Tensor;

struct Example {
  std::string name;
  std::function<std::unique_ptr<ir::Graph>()> build;
  ir::Shape x;
  int64_t classes;
};

// Noise in which the label's share of the elements is lifted.
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
  OwnModel()
      : labels_(test::RandomTensor({ir::DType::kI32, {GetParam().x[0]}, {}}, 2,
                                   0, static_cast<double>(GetParam().classes))),
        x_(SeparableX(GetParam(), labels_)) {
    codegen::CompileOptions options;
    options.passes.keep_gradients = true;  // outputs "grad/<parameter>"
    options.verify = true;
    program_ = &session_.Compile(GetParam().build(),
                                 codegen::ProgramKind::kTrain, options);
    session_.state().Initialize(/*seed=*/3);
    Feed("x", x_);
    Feed("labels", labels_);
    Feed("lr", kRate);
  }

  void Feed(const std::string& name, const Tensor& tensor) {
    std::vector<char> bytes(static_cast<size_t>(tensor.type.num_bytes()));
    ir::StoreTensor(tensor, bytes.data());
    program_->SetInput(program_->FindInput(name), bytes.data(), bytes.size());
  }

  double Step() {
    program_->Run();
    return program_->ReadScalar(program_->FindOutput("loss"));
  }

  // The interpreter's results of the step, from the session's state.
  std::map<std::string, Tensor> Interpreted() {
    const auto graph = GetParam().build();
    passes::PassOptions options;
    options.keep_gradients = true;
    const test::BareTarget target;
    passes::PassContext context(target, options);
    RunPipeline(*graph, context, passes::Stage::kForward);
    RunPipeline(*graph, context, passes::Stage::kTraining);
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph->inputs()) {
      const std::string& name = input.value->name();
      if (IsState(input.role)) {
        const auto values = session_.state().Read(name);
        inputs.push_back({input.value->type(), {values.begin(), values.end()}});
      } else {
        inputs.push_back(name == "x" ? x_ : name == "lr" ? kRate : labels_);
      }
    }
    const auto results = ir::Interpret(*graph, inputs, ir::EvalMode::kExact);
    std::map<std::string, Tensor> by_name;
    for (size_t i = 0; i < results.size(); ++i) {
      by_name[graph->outputs()[i].name] = results[i];
    }
    return by_name;
  }

  inline static const Tensor kRate{{ir::DType::kF32, {}, {}}, {0.1f}};
  const Tensor labels_;
  const Tensor x_;
  runtime::Session session_{runtime::LoadBackend("cpu"), {}};
  runtime::Program* program_ = nullptr;
};

TEST_P(OwnModel, GradientsAndNextStateAreTheInterpreters) {
  const auto expected = Interpreted();
  EXPECT_NEAR(Step(), expected.at("loss").data[0], 1e-5);
  int gradients = 0;
  for (const codegen::StateLayout::Entry& entry :
       session_.state().layout().entries) {
    const int gradient = expected.contains("grad/" + entry.name)
                             ? program_->FindOutput("grad/" + entry.name)
                             : -1;
    if (gradient >= 0) {
      ++gradients;
      EXPECT_LT(test::MaxRelativeError(program_->Read(gradient),
                                       expected.at("grad/" + entry.name)),
                1e-4)
          << entry.name;
    }
    const auto values = session_.state().Read(entry.name);
    Tensor next{expected.at(entry.name).type, {values.begin(), values.end()}};
    EXPECT_LT(test::MaxRelativeError(next, expected.at(entry.name)), 1e-4)
        << entry.name;
  }
  EXPECT_GE(gradients, 8);
}

TEST_P(OwnModel, LearnsABatchByHeart) {
  const double first = Step();
  double last = first;
  for (int i = 0; i < 60; ++i) last = Step();
  EXPECT_LT(last, 0.2 * first);
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
