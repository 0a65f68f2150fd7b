// Memory traffic of a ResNet-50 training step planned for an H200, and the
// number of its kernels and library calls.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "codegen/compiler.h"
#include "models/model.h"
#include "passes/passes.h"
#include "passes/patterns/conv_rewrites.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "tests/testing/cuda_planner.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::test {
namespace {

constexpr int64_t kBatch = 256;

// Traffic per image, estimated by a model of the step. It assumes that each
// operand of a kernel crosses memory once, a normalisation's operands once per
// pass, and that masks have one bit per element.
//
// The rows are: nothing fused; normalisation, addition and ReLU in one kernel;
// statistics in the preceding convolutions; masks and sums of the
// normalisation's gradient in data gradients; normalisations applied in the
// convolutions that read them; normalisations at block ends applied in the next
// convolution.
//
// The model fuses the stem's normalisation, ReLU and max-pool from the third
// row on, the plan from the second on. In the second row, 7.8 are subtracted
// from the model's 347.0: eleven kernels store the sum of two gradients and
// later read the sum instead of both.
struct Row {
  const char* name;
  bool fusion;
  passes::NormLowering lowering;
  double megabytes;  // 1e6 bytes per image, from the model
  // Exact counts of the plan. Review a change before you update them.
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

// One of several ranks launches only additional updates, one per bucket. With
// f32 all-reduces, each convolution's gradient needs a cast: cuDNN has no
// gradients in another dtype than the operands'.
TEST(RankStep, HasTheKernelsOfOneRank) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  struct Counts {
    int64_t kernels, sums;  // all-reduces
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
  EXPECT_EQ(counts(1, {}), (Counts{115, 0}));
  EXPECT_EQ(counts(8, {}), (Counts{118, 5}));
  EXPECT_EQ(counts(8, ir::DType::kF32), (Counts{168, 2}));
}

INSTANTIATE_TEST_SUITE_P(
    ResNet50, StepTraffic,
    ::testing::Values(
        Row{"Unfused", false, NormLowering::kSeparate, 477.1, 1446, 232, 161},
        Row{"Kernels", true, NormLowering::kKernels, 339.2, 115, 54, 165},
        Row{"Statistics", true, NormLowering::kStatistics, 309.7, 166, 61, 165},
        Row{"Gradients", true, NormLowering::kGradients, 277.3, 166, 62, 161},
        Row{"Prologues", true, NormLowering::kPrologues, 264.2, 134, 55, 161},
        Row{"Joins", true, NormLowering::kJoins, 252.7, 119, 47, 161}),
    [](const auto& row) { return std::string(row.param.name); });

double KernelMegabytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    bytes += inspect::TrafficBytes(plan, step);
  }
  return static_cast<double>(bytes) / kBatch / 1e6;
}

// Returns the traffic, using the savings that --tune estimates for each
// rewrite.
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

// Generated kernels of 1x1 convolutions also compute the gradients of
// normalisations as they load their operands. In bf16, cuDNN fuses nothing with
// convolutions. Scratch of the kernels, 6 MB per image, is included.
TEST(GeneratedConvolutions, MoveLessThanTheLibrarys) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  const auto graph = ResNet50();
  for (const auto& [dtype, lowering, library, generated] :
       {std::tuple{ir::DType::kF16, NormLowering::kJoins, 256.2, 248.6},
        std::tuple{ir::DType::kBF16, NormLowering::kKernels, 327.8, 278.2}}) {
    SCOPED_TRACE(DTypeName(dtype));
    codegen::CompileOptions options = OptionsOf(true, lowering);
    options.passes.precision.dtype = dtype;
    const auto megabytes = [&] {
      const codegen::CompiledProgram program = codegen::Compile(
          graph->Clone(), codegen::ProgramKind::kTrain, *compiler, options);
      return static_cast<double>(inspect::TrafficBytes(program.plan)) / kBatch /
             1e6;
    };
    EXPECT_NEAR(megabytes(), library, 0.01 * library);
    options.passes.choices = ChooseGenerated(*graph, *compiler, options);
    const double moved = megabytes();
    RecordProperty("megabytes_an_image", std::to_string(moved));
    EXPECT_NEAR(moved, generated, 0.01 * generated);
  }
}

// No kernel casts a bias, sums the gradient of a max-pool, or adds a bias to a
// matmul. Updates also write the cached cast weights, except for the first
// weight, which is padded to 8 channels. Review a change of the counts before
// you update them.
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
  EXPECT_EQ(program.report.kernels, 39);
  EXPECT_EQ(program.report.library_calls, 47);
  size_t launches = 0;
  for (const codegen::Step& step : program.plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    launches += program.plan.kernels[step.index].kernel.phases.size();
  }
  EXPECT_EQ(launches, 58u);
}

}  // namespace
}  // namespace fusor::test
