// Measures candidates on a GPU by the device's clock: launches are replayed as
// a graph on more memory than its cache holds. The fake driver counts one
// millisecond per work item.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/compiler.h"
#include "codegen/cuda/cuda_printer.h"
#include "codegen/cuda/planned_call.h"
#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/target/autotune_results.h"
#include "ir/target/conv_problem.h"
#include "passes/library/conv_rewriter.h"
#include "runtime/autotuner.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/library_calls.h"
#include "tests/fakes/fake_driver.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

// Work items per launch of each candidate, by its name.
const std::map<std::string, int>& Pieces() {
  static const std::map<std::string, int> pieces{
      {"eng1", 2}, {"eng2", 1}, {"eng3", 3}};
  return pieces;
}

// Offers the three engines for every convolution, in this order.
class ThreeEngines : public ChannelsLastCompiler {
 public:
  using ChannelsLastCompiler::ChannelsLastCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const auto plain = ChannelsLastCompiler::Candidates(node);
    if (!ir::ConvolutionOf(node).has_value()) return plain;
    std::vector<ir::LibraryCandidate> engines;
    for (const auto& [name, pieces] : Pieces()) {
      engines.push_back(plain.at(0));
      engines.back().name = engines.back().algorithm = name;
    }
    return engines;
  }
  void PrepareCall(codegen::LibraryCall& call) const override {
    if (cuda::PrepareMemoryCopy(call)) return;
    call.implementation = "cudnn " + call.attrs.String("algorithm");
    const bool large = call.attrs.String("algorithm") == large_engine;
    call.workspace_bytes = large ? int64_t{1} << 40 : 1000;
  }

  std::string large_engine;  // whose workspace exceeds every GPU's memory
};

// Offers one engine for everything. `pieces` determines its speed.
class OneEngine : public ChannelsLastCompiler {
 public:
  using ChannelsLastCompiler::ChannelsLastCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    auto candidates = ChannelsLastCompiler::Candidates(node);
    if (!ir::ConvolutionOf(node).has_value()) return candidates;
    const ir::Node& op = ir::LibraryOp(node);
    if (!strided_statistics && op.op_name() == "conv2d" && &op != &node &&
        op.attrs().Ints("stride")[0] > 1) {
      return {};
    }
    for (ir::LibraryCandidate& c : candidates) c.name = c.algorithm = "eng1";
    return candidates;
  }
  void PrepareCall(codegen::LibraryCall& call) const override {
    if (!cuda::PrepareMemoryCopy(call)) call.implementation = "cudnn eng1";
  }

  bool strided_statistics = true;  // also for the stem
};

// Offers one engine and, where there is one, a kernel for tensor cores.
class EngineAndKernel : public OneEngine {
 public:
  using OneEngine::OneEngine;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    auto candidates = OneEngine::Candidates(node);
    if (!ir::FitsTensorCores(node)) return candidates;
    if (node.kind() == ir::OpKind::kMatmul) {
      candidates.assign(1, {.name = "cublaslt", .algorithm = "cublaslt"});
      candidates[0].operands.resize(2);  // row-major
      candidates[0].results.resize(1);
    }
    candidates.push_back(candidates.at(0));
    candidates.back().name = candidates.back().algorithm =
        ir::kGeneratedAlgorithm;
    return candidates;
  }
  std::string CompileKernel(const codegen::Kernel& kernel) const override {
    return codegen::PrintCuda(kernel);
  }
};

// The first ops of a block's last gradient, if its shortcut has no
// normalisation.
constexpr char kShortcutGradient[] =
    "conv2d_grad_input,add,sub,mul,mul,add,add";

std::string FusedOps(const codegen::LibraryCall& call) {
  return call.body == nullptr ? "" : ir::FusedOps(*call.body);
}

// Returns 2 ms for a convolution, also with fused normalisation ops. Returns 3
// ms for fusions that must not pay: statistics of the projection, gradients
// added in place, the weight gradient of 8 channels after a normalisation, and
// masks at the end of a block.
int InjectedPieces(const codegen::LibraryCall& call) {
  const std::string fused = FusedOps(call);
  const bool projects = call.operands[1].shape == ir::Shape{16, 8, 1, 1} &&
                        fused == "conv2d,reduce,mul,reduce";
  const bool narrow = fused == "mul,add,relu,conv2d_grad_weight" &&
                      call.operands[0].shape[1] == 8;
  const bool adds = fused == "conv2d_grad_input,add";
  const bool ends_block = fused.starts_with(kShortcutGradient);
  const bool slow = projects || narrow || adds || ends_block;
  return slow ? 3 : 2;
}

// Returns the stem of a ResNet for images of bytes.
std::unique_ptr<ir::Graph> Stem() {
  using ir::DType;
  using ir::InputRole;
  auto graph = std::make_unique<ir::Graph>("stem");
  ir::Builder b(*graph);
  const auto input = [&](ir::TensorType type, InputRole role,
                         const char* name) {
    return graph->AddInput(std::move(type), role, name);
  };
  ir::Value* x =
      input({DType::kU8, {32, 32, 32, 3}, {}}, InputRole::kData, "images");
  x = b.Minus(b.Cast(x, DType::kF32), b.Constant(DType::kF32, {3}, {1, 2, 3}));
  x = b.Times(x, b.Constant(DType::kF32, {3}, {0.5, 0.25, 2}));
  ir::Value* y =
      b.Conv2d(b.Transpose(x, {0, 3, 1, 2}),
               input({DType::kF32, {16, 3, 7, 7}, {}}, InputRole::kWeight, "w"),
               nullptr, {.stride_h = 2, .stride_w = 2, .pad_h = 3, .pad_w = 3});
  y = b.BatchNormTrain(
           y, input({DType::kF32, {16}, {}}, InputRole::kNormScale, "gamma"),
           input({DType::kF32, {16}, {}}, InputRole::kNormShift, "beta"), 1e-5)
          .y;
  ir::Value* labels =
      input({DType::kI32, {32}, {}}, InputRole::kData, "labels");
  ir::Value* losses = b.CrossEntropy(b.GlobalAvgPool(b.Relu(y)), labels, {});
  graph->AddOutput(b.ReduceMean(losses, {0}), "loss");
  return graph;
}

// Returns the cost of a stem's convolution. After space_to_depth it has 16
// channels.
template <int kBlocks>
int StemPieces(const codegen::LibraryCall& call) {
  return call.operands[0].shape[1] == 16 ? kBlocks : 2;
}

int EnginePieces(const codegen::LibraryCall& call) {
  return Pieces().at(call.attrs.String("algorithm"));
}

// Takes time and records the address of its first operand.
class IdleCall : public cuda::DeviceCall {
 public:
  // `rejected`: the device rejects each launch.
  IdleCall(FakeDriver& driver, int pieces, std::set<void*>& operands,
           bool rejected)
      : driver_(driver),
        pieces_(pieces),
        operands_(operands),
        rejected_(rejected) {}
  void Enqueue(CUstream stream, void* const* args) const override {
    if (rejected_) throw Error(ErrorCode::kDevice, "not launched");
    operands_.insert(args[0]);
    for (int i = 0; i < pieces_; ++i) {
      ASSERT_EQ(driver_.LaunchHost(
                    stream, [](void*) {}, nullptr),
                CUDA_SUCCESS);
    }
  }

 private:
  FakeDriver& driver_;
  const int pieces_;
  std::set<void*>& operands_;
  const bool rejected_;
};

class CudaTuneTest : public testing::Test {
 protected:
  runtime::TuneResult Tune(bool graph) {
    return Tune(graph, engines_, EnginePieces);
  }
  runtime::TuneResult Tune(bool graph, const codegen::TargetCompiler& compiler,
                           int (*pieces)(const codegen::LibraryCall&)) {
    const auto make = [&](const codegen::LibraryCall& call)
        -> std::unique_ptr<cuda::DeviceCall> {
      if (auto copy = cuda::MakeMemoryCopy(call)) return copy;
      const std::string& engine = call.attrs.String("algorithm");
      if (!not_loaded_.empty() && engine == not_loaded_) {
        throw Error(ErrorCode::kDevice, "not loaded");
      }
      return std::make_unique<IdleCall>(
          driver_, pieces(call), operands_,
          !not_launched_.empty() && engine == not_launched_);
    };
    const auto device = cuda::OpenCudaDevice(0, {.graph = graph}, make);
    return runtime::Tune(*model_, codegen::ProgramKind::kTrain, compiler,
                         *device, compile_, {.rounds = 2});
  }

  // Returns the choice for the stem's convolution and its comment about
  // space_to_depth. Checks that a step compiled with the choices follows them.
  std::string ChooseStem(const codegen::TargetCompiler& compiler,
                         int (*pieces)(const codegen::LibraryCall&)) {
    model_ = Stem();
    compile_.passes.precision.dtype = ir::DType::kF16;
    const runtime::TuneResult result = Tune(true, compiler, pieces);
    const ir::AutotuneResults::Key key{
        "conv2d x=32x3x32x32 w=16x3x7x7 stride=2,2 pad=3,3 dilation=1,1 "
        "groups=1",
        ir::DType::kF16};
    const std::string& choice = result.choices.candidates.at(key);
    const std::string& comment = result.comments.at(key);
    codegen::CompileOptions options = compile_;
    options.plan_only = true;
    options.passes.choices = ir::ParseAutotuneResults(
        ir::PrintAutotuneResults(result.choices, result.comments), "choices");
    auto counters = codegen::Compile(Stem(), codegen::ProgramKind::kTrain,
                                     compiler, options)
                        .report.counters;
    EXPECT_EQ(counters["space_to_depth"], choice == "space_to_depth");
    EXPECT_EQ(counters["chosen_convolutions"], 2);
    statistics_ = counters["conv_statistics"];
    return choice + " # " + comment;
  }

  FakeDriver& driver_ = LoadFakeDriver();
  ThreeEngines engines_{"nvidia-h200"};
  codegen::CompileOptions compile_;
  std::unique_ptr<ir::Graph> model_ = SmallResidual();
  std::set<void*> operands_;
  std::string not_loaded_, not_launched_;  // engines that the device rejects
  int64_t statistics_ = 0;                 // computed by compiled convolutions
};

TEST_F(CudaTuneTest, ChoosesWhatTakesTheDeviceTheLeastTime) {
  const runtime::TuneResult result = Tune(true);
  EXPECT_TRUE(result.complete);
  std::map<std::string, int> candidates;  // per problem
  for (const runtime::TunedCandidate& c : result.measured) {
    EXPECT_EQ(c.ms, Pieces().at(c.name)) << c.problem;
    EXPECT_EQ(c.copies_ms, 0);
    ++candidates[c.problem];
  }
  EXPECT_GE(candidates.size(), 9);
  EXPECT_THAT(candidates, Each(testing::Pair(testing::_, 3)));
  EXPECT_EQ(result.choices.candidates.size(), candidates.size());
  EXPECT_THAT(result.choices.candidates,
              Each(testing::Pair(testing::_, "eng2")));
  EXPECT_EQ(result.choices.origin.target, "nvidia-h200");
  EXPECT_EQ(result.choices.origin.device,
            "NVIDIA H200, sm_90, 132 multiprocessors");
  EXPECT_EQ(driver_.problem(), "");
  EXPECT_EQ(driver_.used_bytes(), 0);
}

// Warms up with one launch, times one, then replays graphs. No launch uses the
// operands of the previous one, so that they are not cached.
TEST_F(CudaTuneTest, ReplaysGraphsOfLaunchesInOtherPlaces) {
  const runtime::TuneResult result = Tune(true);
  const auto calls = driver_.TakeCalls();
  // Graphs per problem: three engines in round one, the one that is fast enough
  // in two more rounds, and the copy in all rounds. The copy also runs once at
  // the start.
  const auto problems = static_cast<int64_t>(result.choices.candidates.size());
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"),
            3 * problems + 2 * problems + 3 * problems + 1);
  EXPECT_GT(operands_.size(), 32);
}

TEST_F(CudaTuneTest, MeasuresWithoutGraphsWhereTheyAreOff) {
  const runtime::TuneResult result = Tune(false);
  EXPECT_TRUE(result.complete);
  EXPECT_FALSE(result.choices.candidates.empty());
  EXPECT_THAT(driver_.TakeCalls(), testing::Not(Contains("cuGraphLaunch")));
}

TEST_F(CudaTuneTest, LeavesOutWhatDoesNotFitIntoMemory) {
  engines_.large_engine = "eng2";
  const runtime::TuneResult result = Tune(true);
  EXPECT_TRUE(result.complete);
  EXPECT_THAT(result.choices.candidates,
              Each(testing::Pair(testing::_, "eng1")));
  ASSERT_EQ(result.left_out.size(), result.choices.candidates.size());
  EXPECT_THAT(
      result.left_out[0],
      testing::AllOf(testing::StartsWith("eng2 of conv2d"),
                     HasSubstr(" in f32: needs 10995"), HasSubstr(" bytes, 38"),
                     testing::EndsWith(" are free")));
}

TEST_F(CudaTuneTest, LeavesOutWhatTheDeviceRejects) {
  not_loaded_ = "eng2";
  not_launched_ = "eng1";
  const runtime::TuneResult result = Tune(true);
  EXPECT_TRUE(result.complete);
  EXPECT_THAT(result.choices.candidates,
              Each(testing::Pair(testing::_, "eng3")));
  EXPECT_EQ(result.left_out.size(), 2 * result.choices.candidates.size());
  EXPECT_THAT(result.left_out, Contains(testing::AllOf(
                                   testing::StartsWith("eng2 of conv2d x="),
                                   testing::EndsWith(" in f32: not loaded"))));
  EXPECT_THAT(result.left_out,
              Contains(testing::EndsWith(" in f32: not launched")));
}

TEST_F(CudaTuneTest, MixedPrecisionIsMeasuredInItsOwnDtype) {
  compile_.passes.precision.dtype = ir::DType::kF16;
  const runtime::TuneResult result = Tune(true);
  EXPECT_FALSE(result.measured.empty());
  for (const runtime::TunedCandidate& c : result.measured) {
    EXPECT_EQ(c.dtype, ir::DType::kF16) << c.problem;
  }
  EXPECT_TRUE(result.choices.precisions.empty());
}

// A kernel takes one millisecond per phase, the engine three.
TEST_F(CudaTuneTest, MeasuresGeneratedKernels) {
  const EngineAndKernel compiler("nvidia-h200");
  model_ = SmallBottlenecks(1, 64);
  compile_.passes.precision.dtype = ir::DType::kF16;
  compile_.passes.norm_lowering = passes::NormLowering::kKernels;
  const runtime::TuneResult result =
      Tune(true, compiler, [](const codegen::LibraryCall&) { return 3; });
  EXPECT_TRUE(result.complete);
  EXPECT_THAT(result.left_out, testing::IsEmpty());
  std::set<std::string> generated;
  size_t fusions = 0;
  for (const runtime::TunedCandidate& c : result.measured) {
    if (c.name != ir::kGeneratedAlgorithm) continue;
    EXPECT_THAT(c.ms, testing::AnyOf(1, 2)) << c.problem;
    EXPECT_EQ(c.dtype, ir::DType::kF16);
    generated.insert(c.problem);
    // A fusion may save less than it costs.
    const bool fusion = c.problem.find(" fused=") != std::string::npos;
    fusions += fusion ? 1 : 0;
    const auto& choice = result.choices.candidates.at({c.problem, c.dtype});
    EXPECT_TRUE(choice == c.name || (fusion && choice == passes::kDeclined))
        << c.problem << ": " << choice;
  }
  EXPECT_GE(fusions, 4);
  EXPECT_GE(generated.size() - fusions, 6);
  for (const auto& [key, name] : result.choices.candidates) {
    EXPECT_TRUE(generated.contains(key.first) || name == "eng1" ||
                name == "none")
        << key.first << ": " << name;
  }
}

// The same for matmuls, beside cuBLASLt.
TEST_F(CudaTuneTest, MeasuresGeneratedMatmuls) {
  const EngineAndKernel compiler("nvidia-h200");
  model_ = SmallTransformer(1);
  compile_.passes.precision.dtype = ir::DType::kF16;
  const runtime::TuneResult result =
      Tune(true, compiler, [](const codegen::LibraryCall&) { return 3; });
  EXPECT_TRUE(result.complete);
  EXPECT_THAT(result.left_out, testing::IsEmpty());
  size_t generated = 0;
  for (const runtime::TunedCandidate& c : result.measured) {
    EXPECT_THAT(c.problem, testing::StartsWith("matmul a="));
    generated += c.name == ir::kGeneratedAlgorithm ? 1 : 0;
    EXPECT_EQ(result.choices.candidates.at({c.problem, c.dtype}),
              ir::kGeneratedAlgorithm)
        << c.problem;
  }
  EXPECT_GE(generated, 6);
}

// The compiled step contains the fusions that are faster. Kernels compute the
// rest.
TEST_F(CudaTuneTest, TakesConvolutionsWithNormalisationsWhereTheyAreFaster) {
  const OneEngine compiler("nvidia-h200");
  const runtime::TuneResult result = Tune(true, compiler, InjectedPieces);
  std::set<std::string> declined, kinds;
  for (const auto& [key, name] : result.choices.candidates) {
    const std::string& problem = key.first;
    const size_t fused = problem.find("fused=");
    const std::string kind =
        fused == std::string::npos ? "" : problem.substr(fused + 6);
    (name == "none" ? declined : kinds).insert(kind);
  }
  EXPECT_THAT(
      kinds,
      testing::IsSupersetOf(
          {"conv2d,reduce,mul,reduce", "mul,add,relu,conv2d,reduce,mul,reduce",
           "mul,add,add,relu,conv2d,reduce,mul,reduce",
           "mul,add,relu,conv2d_grad_weight",
           "conv2d_grad_input,sub,mul,mul,add,compare,select,mul,"
           "reduce,reduce,mul,mul,mul,mul,mul,mul,sub"}));
  EXPECT_THAT(declined, testing::ElementsAre(
                            "conv2d,reduce,mul,reduce", "conv2d_grad_input,add",
                            testing::StartsWith(kShortcutGradient),
                            "mul,add,relu,conv2d,reduce,mul,reduce",
                            "mul,add,relu,conv2d_grad_weight"));
  EXPECT_GT(result.rewrites_taken, 0);
  EXPECT_LT(result.rewrites_taken, result.rewrites);
  for (const auto& [key, name] : result.choices.candidates) {
    if (name != "none") continue;
    EXPECT_THAT(result.comments.at(key), HasSubstr(" ms; costs ")) << key.first;
  }

  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.choices = ir::ParseAutotuneResults(
      ir::PrintAutotuneResults(result.choices, result.comments), "choices");
  const auto counters =
      codegen::Compile(SmallResidual(), codegen::ProgramKind::kTrain, compiler,
                       options)
          .report.counters;
  EXPECT_EQ(counters.at("conv_statistics"), 5);
  EXPECT_EQ(counters.at("conv_norm_grad"), 3);
  EXPECT_EQ(counters.at("conv_accumulate"), 0);
  EXPECT_EQ(counters.at("conv_norm_prologue"), 1);
  EXPECT_EQ(counters.at("conv_norm_join"), 1);
}

// Adds up the forward convolution and the weight gradient.
TEST_F(CudaTuneTest, TakesTheStemOnBlocksOfPixelsWhereThatIsFaster) {
  OneEngine compiler("nvidia-h200");
  compiler.strided_statistics = false;
  EXPECT_EQ(ChooseStem(compiler, StemPieces<1>),
            "space_to_depth # eng1 2.000 ms; space_to_depth saves 2.003 ms a "
            "step");
  EXPECT_EQ(statistics_, 1);
  EXPECT_EQ(ChooseStem(compiler, StemPieces<3>),
            "eng1 # eng1 2.000 ms; space_to_depth costs 1.997 ms a step");
  EXPECT_EQ(statistics_, 0);
}

// A pass over the convolution's result, here in f32, costs more than the larger
// images. If the library fuses statistics into the strided stem, it saves that
// pass too.
TEST_F(CudaTuneTest, CountsTheBytesOfTheStemOnBlocksOfPixels) {
  OneEngine compiler("nvidia-h200");
  compiler.strided_statistics = false;
  EXPECT_EQ(ChooseStem(compiler, StemPieces<2>),
            "space_to_depth # eng1 2.000 ms; space_to_depth saves 0.003 ms a "
            "step");
  EXPECT_EQ(statistics_, 1);
  compiler.strided_statistics = true;
  EXPECT_EQ(ChooseStem(compiler, StemPieces<2>),
            "eng1 # eng1 2.000 ms; space_to_depth costs 0.001 ms a step");
  EXPECT_EQ(statistics_, 1);
}

}  // namespace
}  // namespace fusor::test
