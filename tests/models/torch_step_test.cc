// Interprets whole training steps of the models in exact mode, and compares
// them with PyTorch in fp64: the loss, every gradient, running statistics, and
// the losses of the first SGD steps.

#include "tests/testing/torch_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/support/error.h"
#include "models/model.h"
#include "passes/training/training_state.h"
#include "tests/testing/torch_golden.h"

namespace fusor::models {
namespace {

using ir::Tensor;
using ir::Value;
using nlohmann::json;
using test::StepSize;
using test::TorchGolden;

constexpr uint64_t kSeed = 0;

// Outputs are the loss, one gradient per stored parameter, and running
// statistics.
class Step {
 public:
  Step(const json& spec, const StepSize& size) {
    model_ = BuildModel(spec.at("model"), Phase::kTrain,
                        {.batch = size.batch,
                         .image_size = size.image,
                         .num_classes = spec.at("classes"),
                         .input = InputFormat::kF32Nchw,
                         .dropout = 0});
    ir::Graph& graph = *model_.graph;
    Value* loss = graph.outputs()[graph.FindOutput("loss")].value;
    for (const json& parameter : spec.at("parameters")) {
      parameters_.push_back(parameter[0]);
      decayed_.push_back(parameter[2] == "weight");
    }
    auto tensors = DrawStepInputs(spec, size, kSeed);
    for (const ir::Input& input : graph.inputs()) {
      inputs_.push_back(std::move(tensors.at(input.value->name())));
    }
    std::vector<Value*> wrt;
    for (const std::string& name : parameters_) {
      wrt.push_back(graph.FindInput(name));
      FUSOR_ASSERT(wrt.back() != nullptr, "no parameter {}", name);
    }
    const auto gradients = passes::BuildGradients(graph, loss, wrt);
    for (size_t i = 0; i < gradients.size(); ++i) {
      graph.AddOutput(gradients[i], "grad/" + parameters_[i]);
    }
  }

  const std::vector<std::string>& parameters() const { return parameters_; }

  void Run() {
    results_.clear();
    results_ = Interpret(*model_.graph, inputs_, ir::EvalMode::kExact);
  }

  const Tensor& Result(const std::string& name) const {
    return results_.at(model_.graph->FindOutput(name));
  }
  double loss() const { return Result("loss").data[0]; }

  // Updates like PyTorch's SGD with momentum 0.9 and weight decay 1e-4 of
  // weights.
  void Update(double learning_rate) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const int index = model_.graph->FindInput(parameters_[p])->index();
      std::vector<double>& w = inputs_[index].data;
      const std::vector<double>& g = Result("grad/" + parameters_[p]).data;
      std::vector<double>& m = momenta_[parameters_[p]];
      m.resize(w.size(), 0);
      const double decay = decayed_[p] ? 1e-4 : 0;
      for (size_t i = 0; i < w.size(); ++i) {
        m[i] = 0.9 * m[i] + g[i] + decay * w[i];
        w[i] -= learning_rate * m[i];
      }
    }
  }

 private:
  Model model_;
  std::vector<Tensor> inputs_;
  std::vector<std::string> parameters_;
  std::vector<bool> decayed_;
  std::vector<Tensor> results_;
  std::map<std::string, std::vector<double>> momenta_;
};

class TorchStep : public ::testing::TestWithParam<std::string> {
 protected:
  void ExpectSame(const Tensor& actual, const std::string& stored,
                  uint32_t position) const {
    EXPECT_TRUE(test::HasFingerprint(actual, golden_.Get(stored), position,
                                     kSeed, 1e-10))
        << stored;
  }

  TorchGolden golden_{GetParam() + ".safetensors"};
};

TEST_P(TorchStep, LossGradientsAndStatisticsAgree) {
  Step step(golden_.spec(), test::StepSizeOf(golden_.spec(), "sharp"));
  step.Run();
  const double loss = golden_.Get("loss").data[0];
  EXPECT_LE(std::fabs(step.loss() - loss), 1e-10 * loss);
  uint32_t position = 0;
  for (const std::string& name : step.parameters()) {
    ExpectSame(step.Result("grad/" + name), "grad/" + name, position++);
  }
  for (const std::string name : golden_.spec().at("running")) {
    ExpectSame(step.Result(name), "running/" + name, position++);
  }
}

TEST_P(TorchStep, TheLossCurveAgrees) {
  const json& spec = golden_.spec();
  if (spec.at("curve").is_null()) {
    EXPECT_FALSE(golden_.Has("curve/loss"));
    return;
  }
  Step step(spec, test::StepSizeOf(spec, "curve"));
  const double learning_rate = spec.at("curve_lr");
  // 6 of the 20 stored steps. A wrong update shows in the next loss.
  constexpr size_t kSteps = 6;
  const std::vector<double> losses = golden_.Get("curve/loss").data;
  for (size_t i = 0; i < kSteps; ++i) {
    step.Run();
    ASSERT_LE(std::fabs(step.loss() - losses[i]), 1e-9 * losses[i]);
    step.Update(learning_rate);
  }
}

TEST(TorchGolden, HoldsTheFourModels) {
  EXPECT_THAT(test::TorchModels(),
              ::testing::ElementsAre("resnet18", "resnet50-v1.5",
                                     "resnet50-v1b", "vgg16"));
}

INSTANTIATE_TEST_SUITE_P(Models, TorchStep,
                         ::testing::ValuesIn(test::TorchModels()),
                         [](const auto& instance) {
                           return test::TestNameOf(instance.param);
                         });

}  // namespace
}  // namespace fusor::models
