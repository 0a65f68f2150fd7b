// Runs whole training steps planned for nvidia-h200 on the emulated GPU, with
// the text of their kernels and planned buffer offsets, and compares them with
// the interpreter.

#include "tests/fakes/emulated_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "ir/library_fusion.h"
#include "models/model.h"
#include "passes/passes.h"
#include "runtime/program.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/fault.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using codegen::ProgramKind;
using ir::DType;
using models::Phase;
using passes::NormLowering;

// A model with a dtype and several lowerings.
struct Case {
  const char* name;
  const char* arch;
  DType dtype = DType::kF32;
  std::vector<NormLowering> lowerings;
};

// Networks of many channels are narrowed: EmulatedWideVgg has all of them.
std::unique_ptr<ir::Graph> Build(const std::string& arch, Phase phase,
                                 int64_t batch) {
  if (arch == "vgg16-bn") return NarrowVgg16Bn(phase, batch);
  if (arch == "resnet18") return NarrowResNet18(phase, batch);
  const models::ModelOptions options{
      .batch = batch, .image_size = 32, .num_classes = 10};
  return models::BuildModel(arch, phase, options).graph;
}

EmulatedSetup SetupOf(DType dtype, NormLowering lowering, bool fusion = true) {
  EmulatedSetup setup;
  setup.passes.fusion = fusion;
  setup.passes.precision.dtype = dtype;
  setup.passes.loss_scale.dynamic = dtype == DType::kF16;
  setup.passes.norm_lowering = lowering;
  // cuDNN fuses normalisation ops only in f16, and block ends only with 1x1
  // convolutions. The plans' results are the same.
  const bool lacking = dtype != DType::kF16 || lowering == NormLowering::kJoins;
  setup.whole_library = lacking && lowering > NormLowering::kKernels;
  return setup;
}

double ShareOf(DType dtype) { return dtype == DType::kF32 ? 1e-4 : 1e-2; }

// Returns whether a call fuses `op` with other ops, including `fused`.
bool HasFusion(const codegen::Plan& plan, const std::string& op,
               const std::string& fused) {
  return std::any_of(
      plan.calls.begin(), plan.calls.end(), [&](const LibraryCall& call) {
        return call.op_name() == op && call.body != nullptr &&
               ir::FusedOps(*call.body).find(fused) != std::string::npos;
      });
}

// Checks that convolutions contain the fusions of the lowering.
void ExpectLowering(const codegen::Plan& plan, NormLowering lowering) {
  EXPECT_EQ(HasFusion(plan, "conv2d", "conv2d,reduce,mul,reduce"),
            lowering >= NormLowering::kStatistics);
  EXPECT_EQ(HasFusion(plan, "conv2d_grad_input", "select"),
            lowering >= NormLowering::kGradients);
  EXPECT_EQ(HasFusion(plan, "conv2d_grad_weight", "relu"),
            lowering >= NormLowering::kPrologues);
  EXPECT_EQ(HasFusion(plan, "conv2d", "add,add,relu"),
            lowering >= NormLowering::kJoins);
}

class EmulatedSteps : public ::testing::TestWithParam<Case> {
 protected:
  // Runs two micro-batches and an evaluation of the resulting state.
  static void Check(EmulatedSetup setup, double share) {
    setup.passes.micro_batches = passes::MicroBatches::kFinish;
    EmulatedTraining training(setup);
    const auto add = [&](Phase phase, ProgramKind kind) {
      return training.Add(Build(GetParam().arch, phase, setup.batch), kind);
    };
    const int train = add(Phase::kTrain, ProgramKind::kTrain);
    const int accumulate = add(Phase::kTrain, ProgramKind::kAccumulate);
    const int eval = add(Phase::kEval, ProgramKind::kEval);
    for (const int program : {train, accumulate}) {
      ExpectLowering(training.program(program).plan(),
                     setup.passes.norm_lowering);
    }
    training.Step(accumulate);
    training.Step(train, share);
    training.Step(eval, share);
    EXPECT_GT(training.backend().num_launches(), 50);
  }
};

// One test for all lowerings, since they share the texts of most kernels.
TEST_P(EmulatedSteps, AreTheInterpreters) {
  const Case& c = GetParam();
  for (const NormLowering lowering : c.lowerings) {
    SCOPED_TRACE(NormLoweringName(lowering));
    const bool least_and_most = lowering == NormLowering::kKernels ||
                                lowering == NormLowering::kPrologues;
    Check(SetupOf(c.dtype, lowering), least_and_most ? ShareOf(c.dtype) : 0);
  }
}

TEST_P(EmulatedSteps, UnfusedAreTheInterpreters) {
  const Case& c = GetParam();
  Check(SetupOf(c.dtype, NormLowering::kSeparate, false), ShareOf(c.dtype));
}

INSTANTIATE_TEST_SUITE_P(
    Models, EmulatedSteps,
    ::testing::Values(Case{"Resnet18F32",
                           "resnet18",
                           DType::kF32,
                           {NormLowering::kSeparate, NormLowering::kJoins}},
                      Case{"Resnet18F16",
                           "resnet18",
                           DType::kF16,
                           {NormLowering::kKernels, NormLowering::kPrologues,
                            NormLowering::kJoins}},
                      Case{"VggF32",
                           "vgg16-bn",
                           DType::kF32,
                           {NormLowering::kKernels, NormLowering::kPrologues}},
                      Case{
                          "VggF16",
                          "vgg16-bn",
                          DType::kF16,
                          {NormLowering::kSeparate, NormLowering::kStatistics,
                           NormLowering::kGradients, NormLowering::kPrologues}},
                      Case{"VggBF16",
                           "vgg16-bn",
                           DType::kBF16,
                           {NormLowering::kKernels, NormLowering::kPrologues}}),
    [](const auto& param) { return std::string(param.param.name); });

// Their updates have reductions in chunks and in blocks of several shapes.
TEST(EmulatedStepsTest, UpdateByOptimizersWithNormsAndCounts) {
  for (const char* name : {"lars", "lamb"}) {
    SCOPED_TRACE(name);
    EmulatedSetup setup = SetupOf(DType::kF32, NormLowering::kKernels);
    setup.passes.optimizer.kind = passes::ParseOptimizer(name);
    EmulatedTraining training(setup);
    const int train =
        training.Add(Build("resnet20-cifar", Phase::kTrain, setup.batch),
                     ProgramKind::kTrain);
    training.Step(train);
    training.Step(train);
  }
}

int64_t NumDots(const codegen::Plan& plan) {
  int64_t dots = 0;
  for (const codegen::CompiledKernel& kernel : plan.kernels) {
    for (const codegen::Phase& phase : kernel.kernel.phases) {
      VisitStatements(phase.body, [&](const codegen::Stmt& stmt) {
        dots += stmt.kind == codegen::StmtKind::kDot ? 1 : 0;
      });
    }
  }
  return dots;
}

bool HasColumnSums(const codegen::Plan& plan) {
  return std::ranges::any_of(plan.kernels, [](const auto& kernel) {
    return std::ranges::any_of(kernel.kernel.buffers, [](const auto& buffer) {
      return buffer.name == "column_sums";
    });
  });
}

// Expects that training with generated kernels for tensor cores, and with the
// library, has the same losses. `check` inspects the program with them.
void ExpectSameLosses(
    EmulatedSetup setup, const ir::Graph& graph,
    const std::function<void(const runtime::Program&)>& check) {
  constexpr size_t kSteps = 2;
  std::vector<double> losses;
  for (const bool generated : {false, true}) {
    if (generated) {
      codegen::CompileOptions options;
      options.passes = setup.passes;
      setup.passes.choices = ChooseGenerated(
          graph, EmulatedTraining(setup).session().compiler(), options);
    }
    EmulatedTraining training(setup);
    const int train = training.Add(graph.Clone(), ProgramKind::kTrain);
    const runtime::Program& program = training.program(train);
    if (generated) {
      check(program);
    } else {
      EXPECT_EQ(NumDots(program.plan()), 0);
    }
    for (size_t step = 0; step < kSteps; ++step) {
      training.Step(train, step == 0 ? ShareOf(DType::kBF16) : 0);
      losses.push_back(program.Read(program.FindOutput("loss")).data.at(0));
    }
  }
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step], losses[kSteps + step], 0.02 * losses[step]);
  }
}

// 1x1 convolutions and their gradients, in generated kernels that also compute
// parts of batch normalisation, and in the library's. Their tiles extend beyond
// channels and pixels.
TEST(EmulatedStepsTest, TrainOnTensorCores) {
  EmulatedSetup setup = SetupOf(DType::kBF16, NormLowering::kKernels);
  setup.classes = 4;
  ExpectSameLosses(setup, *SmallBottlenecks(setup.batch, 48),
                   [](const runtime::Program& program) {
                     EXPECT_TRUE(HasColumnSums(program.plan()));
                     EXPECT_GE(NumDots(program.plan()), 10);
                     const auto& counters = program.report().counters;
                     EXPECT_GE(counters.at("contraction_prologues"), 2);
                     EXPECT_GE(counters.at("conv_statistics"), 2);
                     EXPECT_GE(counters.at("conv_norm_grad"), 2);
                   });
}

// Matmuls, also those of attention, and their gradients.
TEST(EmulatedStepsTest, TrainTransformersOnTensorCores) {
  EmulatedSetup setup = SetupOf(DType::kBF16, NormLowering::kKernels);
  setup.classes = 4;
  ExpectSameLosses(setup, *SmallTransformer(setup.batch),
                   [](const runtime::Program& program) {
                     EXPECT_GE(NumDots(program.plan()), 10);
                     const auto& counters = program.report().counters;
                     EXPECT_GE(counters.at("contractions"), 10);
                     EXPECT_GE(counters.at("contraction_epilogues"), 2);
                   });
}

// Replaces one operation of one kernel, which the plan does not show.
TEST(EmulatedStepsTest, FindAMiscompiledKernel) {
  EmulatedSetup setup = SetupOf(DType::kF32, NormLowering::kKernels);
  const auto build = [&] {
    return Build("resnet20-cifar", Phase::kTrain, setup.batch);
  };
  EmulatedTraining sound(setup);
  const int train = sound.Add(build(), ProgramKind::kTrain);
  EXPECT_THAT(sound.StepAndCompare(train), ::testing::IsEmpty());
  const auto& kernels = sound.program(train).plan().kernels;
  const auto multiplies =
      std::find_if(kernels.begin(), kernels.end(), [](const auto& kernel) {
        const auto ops = test::FaultyOps(kernel.kernel);
        return std::find(ops.begin(), ops.end(), "mul") != ops.end();
      });
  ASSERT_NE(multiplies, kernels.end());
  setup.passes.hook = test::InjectFault(
      {test::FaultKind::kKernel, multiplies->kernel.name, "mul"});
  EmulatedTraining faulty(setup);
  faulty.Add(build(), ProgramKind::kTrain);
  EXPECT_THAT(faulty.StepAndCompare(train),
              ::testing::Not(::testing::IsEmpty()));
}

// VGG with all its channels.
TEST(EmulatedWideVgg, StepsAreTheInterpreters) {
  constexpr NormLowering kLowering = NormLowering::kPrologues;
  EmulatedSetup setup = SetupOf(DType::kF16, kLowering);
  setup.batch = 2;
  EmulatedTraining training(setup);
  const int train = training.Add(NarrowVgg16Bn(Phase::kTrain, setup.batch, 1),
                                 ProgramKind::kTrain);
  ExpectLowering(training.program(train).plan(), kLowering);
  training.Step(train);
}

// Collectives overlap with backward kernels in any order that events permit.
TEST(EmulatedRanks, StepsAreThoseOfOneRankInAnyOrder) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    EmulatedSetup setup = SetupOf(dtype, NormLowering::kKernels);
    setup.passes.buckets = passes::ParseBucketPolicy("buckets", "cap:0.1");
    setup.seed = dtype == DType::kF32 ? 5 : 6;
    setup.world_size = 4;
    EmulatedTraining training(setup);
    const int train = training.Add(NarrowVgg16Bn(Phase::kTrain, setup.batch),
                                   ProgramKind::kTrain);
    const auto& steps = training.program(train).plan().steps;
    EXPECT_GE(std::count_if(steps.begin(), steps.end(),
                            [](const codegen::Step& step) {
                              return step.kind ==
                                     codegen::StepKind::kCollective;
                            }),
              4);
    for (int i = 0; i < 3; ++i) training.Step(train, ShareOf(dtype));
  }
}

// Synchronised batch normalisation: ranks gather statistics during the step.
TEST(EmulatedRanks, NormaliseTogether) {
  EmulatedSetup setup;
  setup.seed = 7;
  setup.world_size = 4;
  const auto build = [&](int64_t norm_ranks) {
    const models::ModelOptions options{.batch = setup.batch,
                                       .image_size = 32,
                                       .num_classes = 10,
                                       .norm_ranks = norm_ranks};
    return models::BuildModel("resnet20-cifar", Phase::kTrain, options).graph;
  };
  EmulatedTraining training(setup);
  const int train =
      training.Add(build(setup.world_size), ProgramKind::kTrain, build(1));
  const auto& calls = training.program(train).plan().calls;
  EXPECT_TRUE(
      std::any_of(calls.begin(), calls.end(), [](const LibraryCall& call) {
        return call.op == ir::OpKind::kAllGather;
      }));
  for (int i = 0; i < 2; ++i) training.Step(train, ShareOf(DType::kF32));
}

}  // namespace
}  // namespace fusor::test
