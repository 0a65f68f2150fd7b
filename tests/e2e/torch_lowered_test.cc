// Interprets training graphs after all passes, including kernels, in exact
// mode, and compares them with PyTorch in fp64. tests/models/torch_step_test.cc
// compares the graphs before the passes with the same values.
//
// The tolerance is the same, relative to a tensor's norm: passes only reorder
// sums. Lowered normalisations shift their sums by a value of the channel, so
// that variances do not cancel.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/model.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/torch_golden.h"
#include "tests/testing/torch_step.h"

namespace fusor {
namespace {

using ir::Graph;
using ir::Tensor;
using nlohmann::json;
using test::TorchGolden;

constexpr double kTolerance = 1e-10;
constexpr uint64_t kSeed = 0;

// Returns the optimised training step with gradients as outputs. Momenta and
// the learning rate are inputs.
std::unique_ptr<Graph> OptimizedStep(const std::string& arch,
                                     const json& spec) {
  const auto size = test::StepSizeOf(spec, "sharp");
  auto graph = models::BuildModel(arch, models::Phase::kTrain,
                                  {.batch = size.batch,
                                   .image_size = size.image,
                                   .num_classes = spec.at("classes"),
                                   .input = models::InputFormat::kF32Nchw,
                                   .dropout = 0})
                   .graph;
  const test::BareTarget target;
  passes::PassOptions options;
  options.keep_gradients = true;
  // In fp64, weights, gradients, momenta and updates take 6 GB.
  if (arch == "vgg16") options.disabled = {"optimizer_update"};
  passes::PassContext context(target, options);
  for (const auto stage : {passes::Stage::kForward, passes::Stage::kTraining,
                           passes::Stage::kOptimize}) {
    RunPipeline(*graph, context, stage);
  }
  return graph;
}

Tensor InputOf(const ir::Input& input, std::map<std::string, Tensor>& drawn) {
  const auto it = drawn.find(input.value->name());
  if (it != drawn.end()) return std::move(it->second);
  const ir::TensorType type{
      input.value->type().dtype, input.value->type().shape, {}};
  return {type, std::vector<double>(type.num_elements(), 0)};
}

class TorchLowered : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchLowered, OptimizedStepAgrees) {
  const TorchGolden golden(GetParam() + ".safetensors");
  const json& spec = golden.spec();
  const auto graph = OptimizedStep(GetParam(), spec);
  int fusions = 0;
  for (const auto& node : graph->nodes()) {
    fusions += node->body() != nullptr ? 1 : 0;
    EXPECT_FALSE(node->op_name().starts_with("batch_norm"))
        << node->location().path;
  }
  EXPECT_GT(fusions, 10);

  auto drawn =
      test::DrawStepInputs(spec, test::StepSizeOf(spec, "sharp"), kSeed);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph->inputs()) {
    inputs.push_back(InputOf(input, drawn));
  }
  const std::vector<Tensor> results =
      Interpret(*graph, inputs, ir::EvalMode::kExact);
  const auto result = [&](const std::string& name) -> const Tensor& {
    return results.at(graph->FindOutput(name));
  };
  const double loss = golden.Get("loss").data.at(0);
  EXPECT_NEAR(result("loss").data.at(0), loss, kTolerance * loss);
  uint32_t position = 0;
  const auto expect_same = [&](const Tensor& actual, const std::string& name) {
    EXPECT_TRUE(test::HasFingerprint(actual, golden.Get(name), position++,
                                     kSeed, kTolerance))
        << name;
  };
  for (const json& parameter : spec.at("parameters")) {
    const std::string name = "grad/" + parameter[0].get<std::string>();
    expect_same(result(name), name);
  }
  for (const std::string name : spec.at("running")) {
    expect_same(result(name), "running/" + name);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TorchLowered,
                         ::testing::ValuesIn(test::TorchModels()),
                         [](const auto& instance) {
                           return test::TestNameOf(instance.param);
                         });

}  // namespace
}  // namespace fusor
