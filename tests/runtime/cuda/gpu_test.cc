// Compares every op and fusion on a GPU with the interpreter, one kernel or
// library call at a time. Skipped without a GPU. The emulated GPU runs a part,
// to test this test.

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "passes/passes.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/distributed/tcp_store.h"
#include "tests/fakes/emulated_device.h"
#include "tests/runtime/cuda/trained_model.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/op_samples.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/small_models.h"
#include "tools/inspect/bisect/isolate.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using Graphs = std::vector<std::unique_ptr<ir::Graph>>;

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// A backend and one of its devices.
class Gpu {
 public:
  explicit Gpu(runtime::Backend& backend)
      : compiler_(backend.CreateCompiler("", {})),
        device_(backend.OpenDevice(0, {})) {}

  const codegen::TargetCompiler& compiler() const { return *compiler_; }

  // `what` names the program in errors.
  void Add(std::string what, std::unique_ptr<ir::Graph> graph, ProgramKind kind,
           const codegen::CompileOptions& options = {}) {
    programs_.push_back({std::move(what),
                         Compile(std::move(graph), kind, *compiler_, options)});
  }

  // Fails the test if a step of the programs differs, and removes the programs.
  // Returns the number of compared steps.
  size_t ExpectAsInterpreted(const inspect::IsolateOptions& isolate = {}) {
    // Loads all kernels first, since the emulated GPU compiles them together.
    std::vector<std::unique_ptr<runtime::Executable>> loaded;
    for (const auto& [what, program] : programs_) {
      if (isolate.calls_only) break;
      for (const codegen::CompiledKernel& kernel : program.plan.kernels) {
        loaded.push_back(device_->LoadKernel(kernel));
      }
    }
    size_t compared = 0;
    for (const auto& [what, program] : programs_) {
      SCOPED_TRACE(what);
      const auto steps = inspect::IsolateSteps(program.plan, *program.graph,
                                               *device_, isolate);
      for (const inspect::IsolatedStep& step : steps) {
        EXPECT_TRUE(step.ok()) << step.what << ir::AtLocation(step.location)
                               << ", result " << step.value << ": error "
                               << step.error << " of " << step.tolerance;
      }
      compared += steps.size();
    }
    programs_.clear();
    return compared;
  }

 private:
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
  std::vector<std::pair<std::string, codegen::CompiledProgram>> programs_;
};

// Applies the op to the sample's operands in the dtype.
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

// GPU libraries only support the dtypes of training.
bool Runs(const ir::OpDef& op, DType dtype) {
  return op.fusion != ir::FusionKind::kLibrary ||
         std::find(std::begin(kFloats), std::end(kFloats), dtype) !=
             std::end(kFloats);
}

void AddOp(Gpu& gpu, const ir::OpDef& op) {
  codegen::CompileOptions options;
  options.passes.disabled = {"simplify"};  // it would fold some ops
  const auto [first, last] = AllOpSamples().equal_range(op.name);
  for (auto it = first; it != last; ++it) {
    for (const DType dtype : ir::kAllDTypes) {
      const std::set<DType>& dtypes = it->second.dtypes;
      if (!dtypes.empty() && !dtypes.contains(dtype)) continue;
      if (!Runs(op, dtype)) continue;
      gpu.Add(std::string(op.name) + " in " + std::string(DTypeName(dtype)),
              OneOp(op.name, it->second, dtype), ProgramKind::kEval, options);
      if (dtypes.empty()) break;  // no operand has the dtype
    }
  }
}

// Adds a training step, fused or not.
void AddStep(Gpu& gpu, std::unique_ptr<ir::Graph> graph, DType dtype,
             bool fusion) {
  codegen::CompileOptions options;
  options.passes.precision.dtype = dtype;
  options.passes.fusion = fusion;
  options.passes.loss_scale.dynamic = dtype == DType::kF16;
  std::string what = graph->name() + " in " + std::string(DTypeName(dtype)) +
                     (fusion ? "" : ", unfused");
  gpu.Add(std::move(what), std::move(graph), ProgramKind::kTrain, options);
}

// Checks cuDNN's convolutions with fused normalisation ops. They exist only in
// f16.
void CheckNormCalls(Gpu& gpu) {
  for (const auto lowering :
       {passes::NormLowering::kStatistics, passes::NormLowering::kJoins}) {
    codegen::CompileOptions options;
    options.passes.precision.dtype = DType::kF16;
    options.passes.norm_lowering = lowering;
    options.plan_only = true;
    gpu.Add(std::string(NormLoweringName(lowering)), SmallBottlenecks(),
            ProgramKind::kTrain, options);
    EXPECT_GT(gpu.ExpectAsInterpreted({.calls_only = true}), 20);
  }
}

// Checks generated kernels for tensor cores.
void CheckTensorCores(Gpu& gpu, const ir::Graph& graph, DType dtype) {
  codegen::CompileOptions options;
  options.passes.precision.dtype = dtype;
  options.passes.norm_lowering = passes::NormLowering::kKernels;
  options.passes.choices = ChooseGenerated(graph, gpu.compiler(), options);
  EXPECT_GT(options.passes.choices.candidates.size(), 5);
  gpu.Add(graph.name() + " in " + std::string(DTypeName(dtype)), graph.Clone(),
          ProgramKind::kTrain, options);
  EXPECT_GT(gpu.ExpectAsInterpreted(), 20);
}

void AddRandomGraph(Gpu& gpu, uint64_t seed) {
  RandomGraphOptions options;
  options.nodes = 25;
  // Comparisons may flip where operands barely differ.
  options.ops = kAllOps & ~kCompare;
  if (seed % 3 != 0) options.dtypes = {std::begin(kFloats), std::end(kFloats)};
  gpu.Add("seed " + std::to_string(seed), RandomGraph(seed, options),
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
  AddOp(*gpu_, ir::GetOp(GetParam()));
  gpu_->ExpectAsInterpreted();
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
  const auto steps = [&](std::unique_ptr<ir::Graph> graph, bool fusion) {
    AddStep(*gpu_, std::move(graph), GetParam(), fusion);
    return gpu_->ExpectAsInterpreted();
  };
  for (const bool fusion : {true, false}) {
    EXPECT_GT(steps(SmallMlp(), fusion), 5);
    EXPECT_GT(steps(SmallResNet(), fusion), 20);
    EXPECT_GT(steps(NarrowVgg16Bn(models::Phase::kTrain), fusion), 20);
  }
}

TEST_F(RealGpu, NormalisationsInConvolutionsAreAsInterpreted) {
  CheckNormCalls(*gpu_);
}

TEST_F(RealGpu, TensorCoresAreAsInterpreted) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    CheckTensorCores(*gpu_, *SmallBottlenecks(4, 48), dtype);
    CheckTensorCores(*gpu_, *SmallBottlenecks(4, 128), dtype);
    CheckTensorCores(*gpu_, *SmallTransformer(16), dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RealGpuStep, ::testing::ValuesIn(kFloats),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

TEST_F(RealGpu, RandomFusionsAreAsInterpreted) {
  for (uint64_t seed = 0; seed < 40; ++seed) AddRandomGraph(*gpu_, seed);
  EXPECT_GT(gpu_->ExpectAsInterpreted(), 40);
}

// One rank runs a plan for two ranks. Its collectives are part of the step's
// graph. NcclTraining.CapturesOneRankAlone does the same on the fake driver.
TEST_F(RealGpu, OneRankOfNcclTrainsInAGraph) {
  runtime::Backend& backend = runtime::LoadBackend("cuda");
  runtime::TcpStore store({.host = "127.0.0.1", .port = 0});
  std::unique_ptr<runtime::Communicator> communicator;
  try {
    communicator = backend.Connect(store, {});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDevice) throw;
    GTEST_SKIP() << error.what();
  }
  TrainedModel model = NarrowVgg(1);
  model.planned_ranks = 2;
  const auto captured = Train(backend, *communicator, model);
  EXPECT_FALSE(communicator->TakeTimes().empty());
  model.graph = false;
  for (const auto& [name, values] : Train(backend, *communicator, model)) {
    const std::vector<float>& others = captured.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(others[i], values[i], 1e-3) << name << " " << i;
    }
  }
}

// Tests this test without a GPU.
TEST(EmulatedGpuTest, OpsAndFusionsAreAsInterpreted) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  Gpu gpu(backend);
  for (const char* op : {"add", "reduce", "matmul", "conv2d"}) {
    AddOp(gpu, ir::GetOp(op));
  }
  AddStep(gpu, SmallMlp(), DType::kF16, true);
  AddRandomGraph(gpu, 1);
  EXPECT_GT(gpu.ExpectAsInterpreted(), 30);
}

TEST(EmulatedGpuTest, NormalisationsInConvolutionsAreAsInterpreted) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  Gpu gpu(backend);
  CheckNormCalls(gpu);
}

TEST(EmulatedGpuTest, TensorCoresAreAsInterpreted) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
  Gpu gpu(backend);
  CheckTensorCores(gpu, *SmallTransformer(), DType::kBF16);
}

}  // namespace
}  // namespace fusor::test
