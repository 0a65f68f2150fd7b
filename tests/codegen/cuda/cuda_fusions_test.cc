// Compares every fusion of training steps and of random graphs with the kernel
// interpreter. Fusions are lowered for a GPU, printed as CUDA C++ and emulated.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "codegen/compiler.h"
#include "codegen/cuda/cuda_printer.h"
#include "codegen/kernel/cache_hints.h"
#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/verifier.h"
#include "models/model.h"
#include "passes/passes.h"
#include "tests/fakes/emulated_kernels.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using codegen::CompiledKernel;
using ir::DType;

struct Case {
  const char* name;
  DType dtype;
  bool channels_last = true;
  bool fusion = true;
  bool eager = false;
  std::vector<passes::NormLowering> lowerings{};  // in addition to the default
  bool no_l2 = false;  // every tensor exceeds the L2 cache
};

std::vector<passes::NormLowering> OtherLowerings() {
  return {passes::NormLowering::kSeparate, passes::NormLowering::kStatistics,
          passes::NormLowering::kGradients, passes::NormLowering::kPrologues,
          passes::NormLowering::kJoins};
}

std::vector<CompiledKernel> StepKernels(
    std::unique_ptr<ir::Graph> graph, const Case& c,
    passes::NormLowering lowering = passes::NormLowering::kKernels) {
  const std::unique_ptr<codegen::TargetCompiler> compiler =
      c.channels_last ? std::make_unique<ChannelsLastCompiler>("nvidia-h200")
                      : std::make_unique<FakeCompiler>("nvidia-h200");
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.precision.dtype = c.dtype;
  options.passes.fusion = c.fusion;
  options.passes.eager_rounding = c.eager;
  options.passes.norm_lowering = lowering;
  if (c.dtype == DType::kF16) options.passes.loss_scale.dynamic = true;
  std::vector<CompiledKernel> kernels =
      codegen::Compile(std::move(graph), codegen::ProgramKind::kTrain,
                       *compiler, options)
          .plan.kernels;
  if (c.no_l2) {
    ir::Target target = compiler->target();
    target.l2_bytes = 0;
    for (CompiledKernel& kernel : kernels) SetCacheHints(target, kernel.kernel);
  }
  return kernels;
}

std::unique_ptr<ir::Graph> Network(const std::string& arch) {
  const models::ModelOptions model{
      .batch = 2, .image_size = 32, .num_classes = 10};
  return models::BuildModel(arch, models::Phase::kTrain, model).graph;
}

int64_t Elements(const CompiledKernel& kernel) {
  int64_t elements = 0;
  for (const codegen::KernelBuffer& buffer : kernel.kernel.buffers) {
    elements += buffer.elements;
  }
  return elements;
}

// Returns the kernel's text without numbers and without hints that only large
// tensors get.
std::string Structure(const CompiledKernel& kernel) {
  const std::string text = PrintCuda(kernel.kernel);
  const std::string own = text.substr(text.find("extern \"C\""));
  static const std::regex numbers("[0-9]+(, true)?");
  return std::regex_replace(own, numbers, "#");
}

// Keeps the smallest kernel of each structure.
class Kernels {
 public:
  void Add(std::vector<CompiledKernel> kernels) {
    for (CompiledKernel& kernel : kernels) {
      const auto [it, added] =
          smallest_.try_emplace(Structure(kernel), std::move(kernel));
      if (!added && Elements(kernel) < Elements(it->second)) {
        it->second = std::move(kernel);
      }
    }
  }
  const std::map<std::string, CompiledKernel>& smallest() const {
    return smallest_;
  }

 private:
  std::map<std::string, CompiledKernel> smallest_;
};

class CudaFusions : public ::testing::TestWithParam<Case> {};

// Returns whether the kernel updates parameters.
bool IsUpdate(const CompiledKernel& kernel) {
  const auto& buffers = kernel.kernel.buffers;
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const auto& buffer) { return buffer.name == "lr"; });
}

// Updates of large networks take too long to emulate. Updates of smaller
// networks replace them.
TEST_P(CudaFusions, OfTrainingStepsAgreeWithTheInterpreter) {
  constexpr int64_t kMostElements = 3'000'000;
  constexpr int64_t kResNetParameters = 23'000'000;
  const Case& c = GetParam();
  Kernels kernels;
  for (const char* arch : {"resnet50", "vgg16", "vgg16-bn", "resnet20-cifar"}) {
    kernels.Add(StepKernels(Network(arch), c));
  }
  kernels.Add(StepKernels(NarrowVgg16Bn(models::Phase::kTrain, 2), c));
  for (const passes::NormLowering lowering : c.lowerings) {
    for (const char* arch : {"resnet50", "vgg16-bn"}) {
      kernels.Add(StepKernels(Network(arch), c, lowering));
    }
  }
  std::vector<CompiledKernel> small;
  for (const auto& [structure, kernel] : kernels.smallest()) {
    if (Elements(kernel) <= kMostElements) {
      small.push_back(kernel);
    } else {
      EXPECT_TRUE(IsUpdate(kernel) || Elements(kernel) > kResNetParameters)
          << Print(kernel.kernel);
    }
  }
  EXPECT_GT(small.size(), 50);
  EXPECT_LE(kernels.smallest().size() - small.size(), 3);
  for (const std::string& problem : CompareWithInterpreter(small, 1)) {
    ADD_FAILURE() << problem;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Networks, CudaFusions,
    ::testing::Values(
        Case{"F32", DType::kF32, true, true, false, OtherLowerings()},
        Case{"F16", DType::kF16, true, true, false, OtherLowerings()},
        Case{"BF16", DType::kBF16, true, true, false, OtherLowerings()},
        Case{"BF16ChannelsFirst", DType::kBF16, false},
        Case{"F32Unfused", DType::kF32, true, false},
        Case{"F16Unfused", DType::kF16, true, false},
        Case{"F16Eager", DType::kF16, true, true, true, {}, true}),
    [](const auto& param) { return param.param.name; });

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

// Sums with so many chunks that one block per channel combines them, in two
// passes. The second pass reads what the first has stored.
TEST(CudaChunkedFusions, AgreeWithTheInterpreter) {
  const ir::Target target = ir::FindTarget("nvidia-h200");
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    ir::Graph graph;
    ir::Builder b(graph);
    const ir::TensorType type{dtype, {2, 256, 24, 32}, ir::ParseLayout("acdb")};
    ir::Value* sum = b.Plus(graph.AddInput(type, ir::InputRole::kData, "x"),
                            graph.AddInput(type, ir::InputRole::kData, "y"));
    ir::Value* mean = b.ReduceMean(sum, {0, 2, 3});
    ir::Value* centred = b.Minus(sum, b.BroadcastAlong(mean, type, 1));
    ir::Value* variance = b.ReduceMean(b.Times(centred, centred), {0, 2, 3});
    graph.AddOutput(sum, "sum");
    graph.AddOutput(b.Times(mean, 2.0), "mean");
    graph.AddOutput(
        b.Times(centred, b.BroadcastAlong(b.Plus(variance, 1.0), type, 1)),
        "result");
    const FakeCompiler compiler("nvidia-h200");
    passes::PassContext context(compiler, {});
    passes::Fuse(graph, context);
    ASSERT_EQ(graph.nodes().size(), 1u);
    codegen::LoweredKernel lowered =
        codegen::LowerFusion(*graph.nodes()[0], target);
    Verify(lowered.kernel);
    ASSERT_EQ(lowered.kernel.phases.size(), 5u) << Print(lowered.kernel);
    EXPECT_EQ(NumTasks(lowered.kernel, lowered.kernel.phases[1]), 256);
    kernels.push_back({std::move(lowered.kernel)});
  }
  for (const std::string& problem : CompareWithInterpreter(kernels, 3)) {
    ADD_FAILURE() << problem;
  }
}

// Sums over images, rows and the 8 columns that a thread loads at once, per
// channel and per group of channels: images give the rows of a block.
TEST(CudaFewLanes, AgreeWithTheInterpreter) {
  const ir::Target target = ir::FindTarget("nvidia-h200");
  std::vector<CompiledKernel> kernels;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    ir::Graph graph;
    ir::Builder b(graph);
    const ir::TensorType type{dtype, {4096, 8, 3, 8}, {}};
    ir::Value* channels_last =
        graph.AddInput({dtype, {4096, 3, 8, 8}, {}}, ir::InputRole::kData, "y");
    ir::Value* product =
        b.Times(graph.AddInput(type, ir::InputRole::kData, "x"),
                b.Transpose(channels_last, {0, 3, 1, 2}));
    graph.AddOutput(product, "product");
    graph.AddOutput(b.ReduceSum(product, {0, 2, 3}), "sum");
    const FakeCompiler compiler("nvidia-h200");
    passes::PassContext context(compiler, {});
    passes::Fuse(graph, context);
    ASSERT_EQ(graph.nodes().size(), 1u);
    codegen::Kernel kernel =
        codegen::LowerFusion(*graph.nodes()[0], target).kernel;
    Verify(kernel);
    EXPECT_GE(codegen::CudaLaunches(kernel)[0].threads, 64) << Print(kernel);
    EXPECT_GE(codegen::CudaLaunches(kernel)[0].blocks, target.threads);
    kernels.push_back({std::move(kernel)});
  }
  for (const std::string& problem : CompareWithInterpreter(kernels, 3)) {
    ADD_FAILURE() << problem;
  }
}

}  // namespace
}  // namespace fusor::test
