// Every fusion of networks' training steps and of random graphs, lowered for a
// GPU, printed as CUDA C++ and emulated, against the kernel interpreter.

#include <gtest/gtest.h>

#include <set>

#include "codegen/compiler.h"
#include "ir/verifier.h"
#include "models/model.h"
#include "passes/passes.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/emulated_kernels.h"
#include "tests/testing/fake_compiler.h"
#include "tests/testing/random_graph.h"

namespace fusor::test {
namespace {

using codegen::CompiledKernel;
using ir::DType;

struct Case {
  const char* arch;
  DType dtype;
  bool channels_last = true;
  bool fusion = true;
  bool eager = false;
};

std::vector<CompiledKernel> StepKernels(const Case& c) {
  const std::unique_ptr<codegen::TargetCompiler> compiler =
      c.channels_last ? std::make_unique<ChannelsLastCompiler>("nvidia-h200")
                      : std::make_unique<FakeCompiler>("nvidia-h200");
  codegen::CompileOptions options;
  options.plan_only = true;
  options.verify = true;
  options.passes.precision.dtype = c.dtype;
  options.passes.fusion = c.fusion;
  options.passes.eager_rounding = c.eager;
  if (c.dtype == DType::kF16) options.passes.loss_scale.dynamic = true;
  models::ModelOptions model{.batch = 2, .image_size = 32, .num_classes = 10};
  return codegen::Compile(
             models::BuildModel(c.arch, models::Phase::kTrain, model).graph,
             codegen::ProgramKind::kTrain, *compiler, options)
      .plan.kernels;
}

// Those that are small enough to interpret and not among `seen`.
std::vector<CompiledKernel> NewAndSmall(std::vector<CompiledKernel> kernels,
                                        std::set<std::string>& seen) {
  constexpr int64_t kElements = int64_t{1} << 20;
  std::erase_if(kernels, [&](const CompiledKernel& kernel) {
    int64_t elements = 0;
    for (const codegen::KernelBuffer& buffer : kernel.kernel.buffers) {
      elements += buffer.elements;
    }
    return elements > kElements ||
           !seen.insert(Print(kernel.kernel, true)).second;
  });
  return kernels;
}

class CudaFusions : public ::testing::TestWithParam<Case> {};

TEST_P(CudaFusions, OfTrainingStepsAgreeWithTheInterpreter) {
  std::set<std::string> seen;
  const std::vector<CompiledKernel> kernels =
      NewAndSmall(StepKernels(GetParam()), seen);
  EXPECT_GT(kernels.size(), 5);
  for (const std::string& problem : CompareWithInterpreter(kernels, 1)) {
    ADD_FAILURE() << problem;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Networks, CudaFusions,
    ::testing::Values(Case{"resnet18", DType::kF32},
                      Case{"resnet18", DType::kF16},
                      Case{"resnet18", DType::kBF16, false},
                      Case{"resnet18", DType::kF16, true, false},
                      Case{"resnet18", DType::kF16, true, true, true}),
    [](const auto& param) { return "Case" + std::to_string(param.index); });

TEST(CudaRandomFusions, AgreeWithTheInterpreter) {
  const ir::Target target = ir::FindTarget("nvidia-h200");
  const FakeCompiler compiler("nvidia-h200");
  std::set<std::string> seen;
  std::vector<CompiledKernel> kernels;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomGraphOptions options;
    options.nodes = 25;
    options.layouts = seed % 2 == 0;
    if (seed % 3 != 0) {
      options.dtypes = {DType::kF32, DType::kF16, DType::kBF16};
    }
    const auto graph = RandomGraph(seed, options);
    const passes::PassOptions pass_options{.fusion = seed % 5 != 0};
    passes::PassContext context(compiler, pass_options);
    passes::Fuse(*graph, context);
    ir::Verify(*graph);
    for (const auto& node : graph->nodes()) {
      if (node->body() == nullptr) continue;
      codegen::LoweredKernel lowered = codegen::LowerFusion(*node, target);
      Verify(lowered.kernel);
      CompiledKernel kernel{std::move(lowered.kernel)};
      const auto operands = static_cast<int>(node->num_inputs());
      for (const auto& alias : lowered.in_place) {
        kernel.in_place.push_back({alias.operand, operands + alias.result});
      }
      if (seen.insert(Print(kernel.kernel, true)).second) {
        kernels.push_back(std::move(kernel));
      }
    }
  }
  EXPECT_GT(kernels.size(), 100);
  for (const std::string& problem : CompareWithInterpreter(kernels, 7)) {
    ADD_FAILURE() << problem;
  }
}

}  // namespace
}  // namespace fusor::test
