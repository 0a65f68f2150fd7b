// Statistics of channels whose mean is a thousand times their deviation. Their
// variance would be lost in f32 sums of squares.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/numeric.h"

namespace fusor {
namespace {

using ir::InputRole;
using ir::Tensor;
using ir::Value;

constexpr double kTolerance = 1e-3;
constexpr double kMeanOverStd = 1000;

// Returns x [N,C,H,W]. Channel c has deviation 2^(c mod 5 - 2).
Tensor MakeImages(const ir::Shape& shape) {
  Tensor x = test::RandomTensor({ir::DType::kF32, shape, {}}, 5, -1.7320508,
                                1.7320508);
  const int64_t pixels = shape[2] * shape[3];
  for (size_t i = 0; i < x.data.size(); ++i) {
    const int64_t c = static_cast<int64_t>(i) / pixels % shape[1];
    x.data[i] = static_cast<float>((x.data[i] + kMeanOverStd) *
                                   std::ldexp(1, static_cast<int>(c % 5) - 2));
  }
  return x;
}

// Returns the biased variance of each channel.
std::vector<double> Variances(const Tensor& x) {
  const ir::Shape& shape = x.type.shape;
  const int64_t pixels = shape[2] * shape[3];
  const auto count = static_cast<double>(shape[0] * pixels);
  std::vector<double> variances;
  for (int64_t c = 0; c < shape[1]; ++c) {
    double sum = 0;
    double squares = 0;
    for (int pass = 0; pass < 2; ++pass) {
      const double mean = sum / count;
      for (int64_t n = 0; n < shape[0]; ++n) {
        const double* plane = &x.data[(n * shape[1] + c) * pixels];
        for (int64_t i = 0; i < pixels; ++i) {
          if (pass == 0) sum += plane[i];
          if (pass == 1) squares += (plane[i] - mean) * (plane[i] - mean);
        }
      }
    }
    variances.push_back(squares / count);
  }
  return variances;
}

// Ops around the normalisation. Each combination compiles to another kernel.
struct Surroundings {
  const char* name;
  bool convolution = false;  // 1x1, which copies its input
  bool residual = false;
  bool relu = false;
  bool fusion = true;
};

class BatchNormStatistics : public ::testing::TestWithParam<Surroundings> {};

std::unique_ptr<ir::Graph> BuildNet(const ir::Shape& shape,
                                    const Surroundings& around) {
  auto graph = std::make_unique<ir::Graph>("net");
  ir::Builder b(*graph);
  const int64_t channels = shape[1];
  const auto state = [&](const char* name, InputRole role, ir::Shape s) {
    return graph->AddInput({ir::DType::kF32, std::move(s), {}}, role, name,
                           {{"init", std::string("constant")}, {"value", 0.0}});
  };
  Value* x =
      graph->AddInput({ir::DType::kF32, shape, {}}, InputRole::kData, "images");
  Value* y = x;
  if (around.convolution) {
    y = b.Conv2d(x,
                 state("conv", InputRole::kWeight, {channels, channels, 1, 1}),
                 nullptr, {});
  }
  const ir::BatchNormResult norm =
      b.BatchNormTrain(y, state("gamma", InputRole::kNormScale, {channels}),
                       state("beta", InputRole::kNormShift, {channels}), 1e-5);
  Value* running = state("running_var", InputRole::kStatistic, {channels});
  graph->AddOutput(b.Plus(b.Times(running, 0.5), b.Times(norm.variance, 0.5)),
                   "running_var", running->index());
  y = norm.y;
  if (around.residual) y = b.Plus(y, x);
  if (around.relu) y = b.Relu(y);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0, 1, 2, 3}), "loss");
  return graph;
}

TEST_P(BatchNormStatistics, OfTheCompiledStepAreRight) {
  for (const ir::Shape& shape :
       {ir::Shape{8, 32, 14, 14}, ir::Shape{4, 3, 17, 9}}) {
    const Tensor x = MakeImages(shape);
    const auto channels = static_cast<size_t>(shape[1]);
    runtime::Session session(runtime::LoadBackend("cpu"), {});
    codegen::CompileOptions options{.verification = passes::Verification::kAll};
    options.passes.fusion = GetParam().fusion;
    runtime::Program& program = session.Compile(
        BuildNet(shape, GetParam()), codegen::ProgramKind::kTrain, options);
    session.state().Initialize(0);
    session.state().Write("gamma", std::vector<float>(channels, 1));
    session.state().Write("running_var", std::vector<float>(channels, 0));
    if (GetParam().convolution) {
      std::vector<float> copy(channels * channels, 0);
      for (size_t c = 0; c < channels; ++c) copy[c * channels + c] = 1;
      session.state().Write("conv", copy);
    }
    const auto feed = [&](const char* name, const std::vector<float>& values) {
      program.SetInput(program.FindInput(name), values.data(),
                       values.size() * sizeof(float));
    };
    feed("images", {x.data.begin(), x.data.end()});
    feed("lr", {0});
    program.Run();
    const std::vector<float> running = session.state().Read("running_var");
    const std::vector<double> expected = Variances(x);
    for (size_t c = 0; c < channels; ++c) {
      EXPECT_NEAR(2 * running[c] / expected[c], 1, kTolerance) << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, BatchNormStatistics,
    ::testing::Values(
        Surroundings{.name = "Alone"},
        Surroundings{.name = "Relu", .relu = true},
        Surroundings{.name = "AddRelu", .residual = true, .relu = true},
        Surroundings{.name = "ConvRelu", .convolution = true, .relu = true},
        Surroundings{.name = "ConvUnfused",
                     .convolution = true,
                     .relu = true,
                     .fusion = false}),
    [](const auto& test) { return test.param.name; });

TEST(BatchNormStatisticsTest, OfTheInterpreterAreRight) {
  const Tensor x = MakeImages({4, 8, 9, 7});
  ir::Graph graph("net");
  ir::Builder b(graph);
  Value* input = graph.AddInput(x.type, InputRole::kData, "images");
  Value* ones = b.Constant(ir::DType::kF32, {8}, {1});
  graph.AddOutput(b.BatchNormTrain(input, ones, ones, 1e-5).variance, "v");
  const std::vector<double> expected = Variances(x);
  for (const ir::EvalMode mode : {ir::EvalMode::kExact, ir::EvalMode::kTyped}) {
    const std::vector<Tensor> results =
        ir::Interpret(graph, std::span(&x, 1), mode);
    for (size_t c = 0; c < expected.size(); ++c) {
      EXPECT_NEAR(results[0].data[c] / expected[c], 1, kTolerance) << c;
    }
  }
}

}  // namespace
}  // namespace fusor
