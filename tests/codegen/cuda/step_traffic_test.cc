// Bytes between memory and GPU that a training step of ResNet-50 moves, and the
// kernels and calls that move them, as planned for an H200.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "codegen/compiler.h"
#include "models/model.h"
#include "passes/passes.h"
#include "passes/patterns/conv_rewrites.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::test {
namespace {

constexpr int64_t kBatch = 256;

// What a model of the step says that has to cross memory, an image, when each
// operand of a kernel crosses it once, a normalisation's as often as it passes
// over it, and masks have one bit an element: nothing fused; normalisation,
// addition and ReLU one kernel; statistics in the convolutions before; masks
// and sums of its gradient in data gradients; normalisations applied in the
// convolutions that read them; those at block ends in the one that follows. The
// model has the stem's normalisation, ReLU and max-pool in one from the third
// on; here they are from the second on. In the second, the model's 347.0 are
// less 7.8: the eleven kernels that store the sum of two gradients read it
// afterwards instead of both.
struct Row {
  const char* name;
  bool fusion;
  passes::NormLowering lowering;
  double megabytes;  // 1e6 bytes an image, of the model
  // Of the plan, exactly; looked at before they are changed.
  int64_t kernels, distinct_kernels, calls;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

codegen::CompileOptions OptionsOf(bool fusion, passes::NormLowering lowering) {
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.precision.dtype = ir::DType::kF16;
  options.passes.fusion = fusion;
  options.passes.norm_lowering = lowering;
  return options;
}

std::unique_ptr<ir::Graph> ResNet50() {
  return models::BuildModel("resnet50-v1.5", models::Phase::kTrain,
                            {.batch = kBatch})
      .graph;
}

class StepTraffic : public ::testing::TestWithParam<Row> {};

TEST_P(StepTraffic, IsThatOfTheRoofline) {
  const Row& row = GetParam();
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  const codegen::CompiledProgram program =
      codegen::Compile(ResNet50(), codegen::ProgramKind::kTrain, *compiler,
                       OptionsOf(row.fusion, row.lowering));
  const double megabytes =
      static_cast<double>(inspect::TrafficBytes(program.plan)) / kBatch / 1e6;
  RecordProperty("megabytes_an_image", std::to_string(megabytes));
  EXPECT_LE(megabytes, 1.05 * row.megabytes);
  EXPECT_GE(megabytes, 0.95 * row.megabytes);
  EXPECT_EQ(program.report.kernels, row.kernels);
  EXPECT_EQ(program.report.distinct_kernels, row.distinct_kernels);
  EXPECT_EQ(program.report.library_calls, row.calls);
}

using passes::NormLowering;

// One of several ranks launches nothing more than one that is alone, but for
// updates, bucket by bucket. With sums in f32 each convolution's gradient is
// cast for them: cuDNN has none of another dtype than its operands.
TEST(RankStep, HasTheKernelsOfOneRank) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  struct Counts {
    int64_t kernels, sums;  // over ranks
    bool operator==(const Counts&) const = default;
  };
  const auto counts = [&](int ranks, std::optional<ir::DType> wire) {
    codegen::CompileOptions options = OptionsOf(true, NormLowering::kKernels);
    options.passes.world_size = ranks;
    options.passes.precision.wire = wire;
    const codegen::CompiledProgram program = codegen::Compile(
        ResNet50(), codegen::ProgramKind::kTrain, *compiler, options);
    const auto& steps = program.plan.steps;
    return Counts{program.report.kernels,
                  std::count_if(steps.begin(), steps.end(), [](const auto& s) {
                    return s.kind == codegen::StepKind::kCollective;
                  })};
  };
  EXPECT_EQ(counts(1, {}), (Counts{118, 0}));
  EXPECT_EQ(counts(8, {}), (Counts{121, 5}));
  EXPECT_EQ(counts(8, ir::DType::kF32), (Counts{171, 2}));
}

INSTANTIATE_TEST_SUITE_P(
    ResNet50, StepTraffic,
    ::testing::Values(
        Row{"Unfused", false, NormLowering::kSeparate, 477.1, 1448, 239, 161},
        Row{"Kernels", true, NormLowering::kKernels, 339.2, 118, 56, 165},
        Row{"Statistics", true, NormLowering::kStatistics, 309.7, 168, 62, 165},
        Row{"Gradients", true, NormLowering::kGradients, 277.3, 168, 63, 161},
        Row{"Prologues", true, NormLowering::kPrologues, 264.2, 136, 56, 161},
        Row{"Joins", true, NormLowering::kJoins, 252.7, 121, 48, 161}),
    [](const auto& row) { return std::string(row.param.name); });

double KernelMegabytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    bytes += inspect::TrafficBytes(plan, step);
  }
  return static_cast<double>(bytes) / kBatch / 1e6;
}

// By what --tune believes that kernels move less for each of them.
double SurveyedMegabytes(const ir::TargetQueries& target,
                         NormLowering lowering) {
  passes::PassContext context(target, OptionsOf(true, lowering).passes);
  const auto graph = ResNet50();
  RunPipeline(*graph, context, passes::Stage::kForward);
  RunPipeline(*graph, context, passes::Stage::kTraining);
  std::vector<std::string> names;
  for (const passes::PassEntry& entry : passes::Pipeline()) {
    if (entry.stage != passes::Stage::kOptimize) continue;
    if (entry.name == "fuse_conv_norm") break;
    names.emplace_back(entry.name);
  }
  RunPasses(*graph, context, names);
  int64_t bytes = 0;
  for (const passes::ConvRewrite& rewrite :
       passes::SurveyConvNorm(*graph, context, lowering)) {
    bytes += rewrite.saved_bytes;
  }
  return static_cast<double>(bytes) / kBatch / 1e6;
}

TEST(SurveyedTraffic, IsWhatKernelsNoLongerMove) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  const auto moved = [&](NormLowering lowering) {
    return KernelMegabytes(
        codegen::Compile(ResNet50(), codegen::ProgramKind::kTrain, *compiler,
                         OptionsOf(true, lowering))
            .plan);
  };
  const double kernels = moved(NormLowering::kKernels);
  for (const NormLowering lowering :
       {NormLowering::kGradients, NormLowering::kJoins}) {
    const double saved = kernels - moved(lowering);
    EXPECT_NEAR(SurveyedMegabytes(*compiler, lowering), saved, 0.05 * saved)
        << passes::NormLoweringName(lowering);
  }
}

// No kernel casts a bias, sums up what max-pool's gradient spreads, or adds a
// bias to a product; copies of weights are written by the launch that updates
// these, except that of the first weight, which is padded to 8 channels. Counts
// are looked at before they are changed.
TEST(Vgg16Step, HasNoKernelsAroundBiases) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.precision.dtype = ir::DType::kF16;
  const codegen::CompiledProgram program = codegen::Compile(
      models::BuildModel("vgg16", models::Phase::kTrain, {.batch = 64}).graph,
      codegen::ProgramKind::kTrain, *compiler, options);
  const auto& counters = program.report.counters;
  EXPECT_EQ(counters.at("matmul_bias"), 3);
  EXPECT_EQ(counters.at("matmul_relu"), 2);
  EXPECT_EQ(counters.at("weight_copies"), 30);
  EXPECT_EQ(program.report.kernels, 40);
  EXPECT_EQ(program.report.library_calls, 47);
  size_t launches = 0;
  for (const codegen::Step& step : program.plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    launches += program.plan.kernels[step.index].kernel.phases.size();
  }
  EXPECT_EQ(launches, 59u);
}

}  // namespace
}  // namespace fusor::test
