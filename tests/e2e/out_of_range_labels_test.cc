// If a label is not a class, the loss and the gradient of its sample are NaN:
// interpreted, compiled for the CPU, and in emulated CUDA text.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "passes/training/training_state.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tests/fakes/emulated_device.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::Tensor;
using ir::TensorType;
using ir::Value;

constexpr int64_t kSamples = 6, kClasses = 37;

// Returns the losses of all samples and the gradient of their sum.
std::unique_ptr<ir::Graph> Losses(double smoothing) {
  auto graph = std::make_unique<ir::Graph>("losses");
  ir::Builder b(*graph);
  Value* logits = graph->AddInput({DType::kF32, {kSamples, kClasses}, {}},
                                  ir::InputRole::kData, "logits");
  Value* labels = graph->AddInput({DType::kI32, {kSamples}, {}},
                                  ir::InputRole::kData, "labels");
  Value* losses =
      b.CrossEntropy(logits, labels, {.label_smoothing = smoothing});
  const std::vector<Value*> wrt{logits};
  graph->AddOutput(losses, "losses");
  graph->AddOutput(
      passes::BuildGradients(*graph, b.ReduceSum(losses, {0}), wrt)[0],
      "gradient");
  return graph;
}

std::vector<Tensor> Inputs() {
  return {RandomTensor({DType::kF32, {kSamples, kClasses}, {}}, 1, -3, 3),
          MakeTensor({DType::kI32, {kSamples}, {}},
                     {0, -1, kClasses - 1, kClasses, 5, -100})};
}

bool IsBad(int64_t sample) { return sample == 1 || sample == 3 || sample == 5; }

void ExpectNanWhereBad(const std::vector<Tensor>& results) {
  for (int64_t n = 0; n < kSamples; ++n) {
    EXPECT_EQ(std::isnan(results[0].data[n]), IsBad(n)) << n;
    for (int64_t c = 0; c < kClasses; ++c) {
      EXPECT_EQ(std::isnan(results[1].data[n * kClasses + c]), IsBad(n)) << n;
    }
  }
}

void ExpectAsInterpreted(runtime::Backend& backend) {
  const std::vector<Tensor> inputs = Inputs();
  for (const double smoothing : {0.0, 0.1}) {
    const std::vector<Tensor> expected =
        ir::Interpret(*Losses(smoothing), inputs, ir::EvalMode::kExact);
    ExpectNanWhereBad(expected);
    for (const bool fusion : {true, false}) {
      codegen::CompileOptions options{.verification =
                                          passes::Verification::kAll};
      options.passes.fusion = fusion;
      runtime::Session session(backend, {});
      runtime::Program& program = session.Compile(
          Losses(smoothing), codegen::ProgramKind::kEval, options);
      for (int i = 0; i < 2; ++i) {
        const auto bytes = ir::TensorBytes(inputs[i]);
        program.SetInput(i, bytes.data(), bytes.size());
      }
      program.Run();
      const std::vector<Tensor> results{program.Read(0), program.Read(1)};
      ExpectNanWhereBad(results);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(AllClose(results[i], {results[i].type, expected[i].data},
                             1e-5, 1e-6));
      }
    }
  }
}

TEST(OutOfRangeLabels, AreNanOnTheCpu) {
  ExpectAsInterpreted(runtime::LoadBackend("cpu"));
}

TEST(OutOfRangeLabels, AreNanInCudaKernels) {
  EmulatedOptions options;
  options.compiler = [] {
    return std::make_unique<ChannelsLastCompiler>("nvidia-h200");
  };
  EmulatedBackend backend(std::move(options));
  ExpectAsInterpreted(backend);
}

}  // namespace
}  // namespace fusor::test
