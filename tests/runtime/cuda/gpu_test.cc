// Every op and fusion on a GPU against the interpreter, each kernel and library
// call alone. Skipped where there is none; the emulated GPU takes its place for
// a part, so that the test itself is tested.

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "ir/op.h"
#include "models/model.h"
#include "runtime/backend_loader.h"
#include "runtime/debug/isolate.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/emulated_device.h"
#include "tests/testing/op_samples.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using Graphs = std::vector<std::unique_ptr<ir::Graph>>;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// A backend and one device of it.
class Gpu {
 public:
  explicit Gpu(runtime::Backend& backend)
      : compiler_(backend.CreateCompiler("", {})),
        device_(backend.OpenDevice(0, {})) {}

  // Fails the test where a step differs. Returns how many were compared.
  size_t ExpectAsInterpreted(std::unique_ptr<ir::Graph> graph, ProgramKind kind,
                             const codegen::CompileOptions& options = {}) {
    const auto program =
        codegen::Compile(std::move(graph), kind, *compiler_, options);
    const auto steps =
        runtime::IsolateSteps(program.plan, *program.graph, *device_);
    for (const runtime::IsolatedStep& step : steps) {
      EXPECT_TRUE(step.ok())
          << step.what << ir::AtLocation(step.location) << ", result "
          << step.value << ": error " << step.error << " of " << step.tolerance;
    }
    return steps.size();
  }

 private:
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
};

// The op on the sample's operands, in the dtype.
std::unique_ptr<ir::Graph> OneOp(std::string_view op, const OpSample& sample,
                                 DType dtype) {
  auto graph = std::make_unique<ir::Graph>("one");
  std::vector<ir::Value*> values;
  for (const ir::Tensor& operand : SampleOperands(sample, dtype)) {
    values.push_back(graph->AddInput(operand.type, ir::InputRole::kData, "x"));
  }
  const ir::Node* node = graph->AddNode(op, values, sample.attrs);
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    graph->AddOutput(node->output(i), "y" + std::to_string(i));
  }
  return graph;
}

// Libraries of GPUs have no other dtypes than those of training.
bool Runs(const ir::OpDef& op, DType dtype) {
  return op.fusion != ir::FusionKind::kLibrary ||
         std::find(std::begin(kFloats), std::end(kFloats), dtype) !=
             std::end(kFloats);
}

size_t CheckOp(Gpu& gpu, const ir::OpDef& op) {
  codegen::CompileOptions options;
  options.passes.disabled = {"simplify"};  // it would fold some away
  size_t steps = 0;
  const auto [first, last] = AllOpSamples().equal_range(op.name);
  for (auto it = first; it != last; ++it) {
    for (const DType dtype : ir::kAllDTypes) {
      const std::set<DType>& dtypes = it->second.dtypes;
      if (!dtypes.empty() && !dtypes.contains(dtype)) continue;
      if (!Runs(op, dtype)) continue;
      SCOPED_TRACE(DTypeName(dtype));
      steps += gpu.ExpectAsInterpreted(OneOp(op.name, it->second, dtype),
                                       ProgramKind::kEval, options);
      if (dtypes.empty()) break;  // the dtype plays no part
    }
  }
  return steps;
}

// A training step, fused or not.
size_t CheckStep(Gpu& gpu, std::unique_ptr<ir::Graph> graph, DType dtype,
                 bool fusion) {
  SCOPED_TRACE(graph->name() + " in " + std::string(DTypeName(dtype)) +
               (fusion ? "" : ", unfused"));
  codegen::CompileOptions options;
  options.passes.precision.dtype = dtype;
  options.passes.fusion = fusion;
  options.passes.loss_scale.dynamic = dtype == DType::kF16;
  return gpu.ExpectAsInterpreted(std::move(graph), ProgramKind::kTrain,
                                 options);
}

size_t CheckRandomGraph(Gpu& gpu, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomGraphOptions options;
  options.nodes = 25;
  // What compares may jump where operands barely differ.
  options.ops = kAllOps & ~kCompare;
  if (seed % 3 != 0) options.dtypes = {std::begin(kFloats), std::end(kFloats)};
  return gpu.ExpectAsInterpreted(RandomGraph(seed, options),
                                 ProgramKind::kEval);
}

class RealGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime::Backend& backend = runtime::LoadBackend("cuda");
    if (backend.device_count() == 0) GTEST_SKIP() << "no GPU";
    gpu_ = std::make_unique<Gpu>(backend);
  }
  std::unique_ptr<Gpu> gpu_;
};

class RealGpuOp : public RealGpu,
                  public ::testing::WithParamInterface<std::string> {};

TEST_P(RealGpuOp, IsAsInterpretedInEveryDtypeItAccepts) {
  CheckOp(*gpu_, ir::GetOp(GetParam()));
}

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const ir::OpDef* op : ir::AllOps()) {
    if (!op->has_body) names.emplace_back(op->name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Ops, RealGpuOp, ::testing::ValuesIn(OpNames()),
                         [](const auto& test) { return test.param; });

class RealGpuStep : public RealGpu,
                    public ::testing::WithParamInterface<DType> {};

TEST_P(RealGpuStep, HasKernelsAndCallsAsInterpreted) {
  for (const bool fusion : {true, false}) {
    EXPECT_GT(CheckStep(*gpu_, SmallMlp(), GetParam(), fusion), 5);
    EXPECT_GT(CheckStep(*gpu_, SmallResNet(), GetParam(), fusion), 20);
    EXPECT_GT(CheckStep(*gpu_, NarrowVgg16Bn(models::Phase::kTrain), GetParam(),
                        fusion),
              20);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RealGpuStep, ::testing::ValuesIn(kFloats),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

TEST_F(RealGpu, RandomFusionsAreAsInterpreted) {
  for (uint64_t seed = 0; seed < 40; ++seed) CheckRandomGraph(*gpu_, seed);
}

// The test itself, without a GPU.
TEST(EmulatedGpuTest, OpsAndFusionsAreAsInterpreted) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  Gpu gpu(backend);
  for (const char* op : {"add", "reduce", "matmul", "conv2d"}) {
    EXPECT_GT(CheckOp(gpu, ir::GetOp(op)), 0) << op;
  }
  EXPECT_GT(CheckStep(gpu, SmallMlp(), DType::kF16, true), 5);
  EXPECT_GT(CheckRandomGraph(gpu, 1), 0);
}

}  // namespace
}  // namespace fusor::test
