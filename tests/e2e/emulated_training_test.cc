// Whole training steps of the plans that nvidia-h200 gets, on the emulated GPU:
// their kernels' very text, at planned places, against the interpreter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "ir/tensor_bytes.h"
#include "ir/training_names.h"
#include "models/model.h"
#include "runtime/session.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/emulated_device.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using ir::Tensor;
using models::Phase;

constexpr int64_t kBatch = 4;

// `whole`: with a library that has every convolution, whatever cuDNN lacks.
EmulatedOptions Gpu(uint64_t seed, int world_size = 1, bool whole = false) {
  EmulatedOptions options;
  options.compiler = [whole]() -> std::unique_ptr<codegen::TargetCompiler> {
    if (!whole) return CudaPlanner("nvidia-h200");
    return std::make_unique<ChannelsLastCompiler>("nvidia-h200");
  };
  options.seed = seed;
  options.world_size = world_size;
  return options;
}

// A session on the emulated GPU, each step of which the interpreter repeats on
// the optimised graph, from the same state and data.
class EmulatedTraining {
 public:
  EmulatedTraining(uint64_t seed, passes::PassOptions options,
                   int world_size = 1, bool whole_library = false)
      : backend_(Gpu(seed, world_size, whole_library)),
        communicator_(world_size > 1 ? backend_.Connect() : nullptr),
        session_(backend_, {}, communicator_.get()),
        options_(std::move(options)) {
    options_.world_size = world_size;
    options_.keep_gradients = true;
    data_[ir::kLearningRate] = MakeTensor({DType::kF32, {}, {}}, {0.01});
    data_["random_key"] = MakeTensor({DType::kI64, {}, {}}, {77});
    data_["step"] = MakeTensor({DType::kI32, {}, {}}, {3});
    data_["images"] =
        RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}}, 2, 0, 256);
    data_["labels"] = RandomTensor({DType::kI32, {kBatch}, {}}, 3, 0, 10);
    data_["weights"] = MakeTensor({DType::kF32, {kBatch}, {}}, {1, 1, 1, 0});
  }

  // `alone`: what one rank of several does by itself, where that is another.
  int Add(std::unique_ptr<ir::Graph> graph, ProgramKind kind,
          std::unique_ptr<ir::Graph> alone = nullptr) {
    codegen::CompileOptions options;
    options.verify = true;
    options.passes = options_;
    if (options_.world_size > 1) {
      if (alone == nullptr) alone = graph->Clone();
      codegen::CompileOptions reference = options;
      reference.passes.world_size = 1;
      reference.plan_only = true;
      references_.push_back(
          Compile(std::move(alone), kind, session_.compiler(), reference)
              .graph);
    }
    const int program = session_.AddProgram(std::move(graph), kind, options);
    if (program == 0) session_.InitializeState(1);
    return program;
  }

  // Fails the test where an output is further from what it would be without
  // rounding than the interpreter's is: `share` of its length, and some times
  // as far, for sums in another order have other errors. The loss is compared
  // itself.
  void Step(int program, double share) {
    // Ranks that all have the same data do what one of them does.
    const ir::Graph& graph =
        references_.empty() ? session_.graph(program) : *references_[program];
    const std::vector<Tensor> inputs = Inputs(graph);
    FeedData(program);
    backend_.Expect(session_.plan(program));
    session_.Step(program);
    const auto typed = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
    const auto exact = ir::Interpret(graph, inputs, ir::EvalMode::kExact);
    for (size_t i = 0; i < typed.size(); ++i) {
      const std::string& name = graph.outputs()[i].name;
      // Its correction for bias depends on the number of ranks.
      if (!references_.empty() && name.ends_with("running_var")) continue;
      const Tensor actual =
          session_.ReadOutput(program, session_.FindOutput(program, name));
      const double far = Distance(typed[i], exact[i]);
      const double length = Distance(exact[i], Tensor{});
      EXPECT_LE(Distance(actual, exact[i]), 10 * far + share * length)
          << name << ": the interpreter's is off by " << far << " of "
          << length;
      if (name == "loss") {
        EXPECT_NEAR(actual.data[0], typed[i].data[0],
                    share * std::abs(typed[i].data[0]));
      }
    }
  }

  runtime::Session& session() { return session_; }
  EmulatedBackend& backend() { return backend_; }

 private:
  std::vector<Tensor> Inputs(const ir::Graph& graph) {
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph.inputs()) {
      const std::string& name = input.value->name();
      if (!IsState(input.role)) {
        inputs.push_back(data_.at(name));
        continue;
      }
      const std::vector<float> values = session_.ReadState(name);
      inputs.push_back({input.value->type(), {values.begin(), values.end()}});
    }
    return inputs;
  }

  void FeedData(int program) {
    for (const codegen::PlanInput& input : session_.plan(program).inputs) {
      if (IsState(input.role)) continue;
      const Tensor& tensor = data_.at(input.name);
      std::vector<char> bytes(static_cast<size_t>(tensor.type.num_bytes()));
      ir::StoreTensor(tensor, bytes.data());
      session_.SetInput(program, session_.FindInput(program, input.name),
                        bytes.data(), bytes.size());
    }
  }

  // Euclidean; an empty tensor is all zero.
  static double Distance(const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (size_t i = 0; i < a.data.size(); ++i) {
      const double d = a.data[i] - (b.data.empty() ? 0 : b.data[i]);
      sum += d * d;
    }
    return std::sqrt(sum);
  }

  EmulatedBackend backend_;
  std::unique_ptr<runtime::Communicator> communicator_;
  runtime::Session session_;
  passes::PassOptions options_;
  std::map<std::string, Tensor> data_;
  std::vector<std::unique_ptr<ir::Graph>> references_;  // with several ranks
  double worst_ = 0;
  std::string where_;
};

struct Case {
  const char* name;
  const char* arch;
  DType dtype = DType::kF32;
  bool micro_batches = false;
  bool fusion = true;
};

std::unique_ptr<ir::Graph> Build(const std::string& arch, Phase phase) {
  if (arch == "vgg16-bn") return NarrowVgg16Bn(phase, kBatch);
  const models::ModelOptions options{
      .batch = kBatch, .image_size = 32, .num_classes = 10};
  return models::BuildModel(arch, phase, options).graph;
}

passes::PassOptions OptionsOf(const Case& c) {
  passes::PassOptions options;
  options.fusion = c.fusion;
  options.precision.dtype = c.dtype;
  options.loss_scale.dynamic = c.dtype == DType::kF16;
  if (c.micro_batches) options.micro_batches = passes::MicroBatches::kFinish;
  return options;
}

double ShareOf(DType dtype) { return dtype == DType::kF32 ? 1e-4 : 1e-2; }

class EmulatedSteps : public ::testing::TestWithParam<Case> {};

TEST_P(EmulatedSteps, AreTheInterpreters) {
  const Case& c = GetParam();
  const double share = ShareOf(c.dtype);
  EmulatedTraining training(1, OptionsOf(c));
  const auto add = [&](Phase phase, ProgramKind kind) {
    return training.Add(Build(c.arch, phase), kind);
  };
  const int train = add(Phase::kTrain, ProgramKind::kTrain);
  const int eval = add(Phase::kEval, ProgramKind::kEval);
  if (c.micro_batches) {
    const int accumulate = add(Phase::kTrain, ProgramKind::kAccumulate);
    training.Step(accumulate, share);
  }
  training.Step(train, share);
  training.Step(eval, share);
  EXPECT_GT(training.backend().num_launches(), 50);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EmulatedSteps,
    ::testing::Values(
        Case{"Resnet18F32", "resnet18", DType::kF32},
        Case{"Resnet18F16", "resnet18", DType::kF16, true},
        Case{"VggF32", "vgg16-bn", DType::kF32, true},
        Case{"VggF16", "vgg16-bn", DType::kF16},
        Case{"VggBF16", "vgg16-bn", DType::kBF16},
        Case{"VggF32Unfused", "vgg16-bn", DType::kF32, false, false},
        Case{"VggF16Unfused", "vgg16-bn", DType::kF16, true, false}),
    [](const auto& param) { return std::string(param.param.name); });

using passes::NormLowering;

struct LoweringCase {
  const char* name;
  const char* arch;
  DType dtype;
  NormLowering lowering;
  bool fusion = true;
};

class EmulatedNormLowerings : public ::testing::TestWithParam<LoweringCase> {};

// cuDNN has nothing of them in f32; what the plans compute is the same.
TEST_P(EmulatedNormLowerings, AreTheInterpreters) {
  const LoweringCase& c = GetParam();
  passes::PassOptions options = OptionsOf({"", "", c.dtype, false, c.fusion});
  options.norm_lowering = c.lowering;
  EmulatedTraining training(9, options, 1, c.dtype == DType::kF32);
  const int train =
      training.Add(Build(c.arch, Phase::kTrain), ProgramKind::kTrain);
  const auto& calls = training.session().plan(train).calls;
  const auto any = [&](const auto& has) {
    return std::any_of(calls.begin(), calls.end(), has);
  };
  EXPECT_EQ(any([](const codegen::LibraryCall& call) {
              return call.op == "conv2d" && call.attrs.Bool("statistics");
            }),
            c.lowering >= NormLowering::kStatistics);
  EXPECT_EQ(any([](const codegen::LibraryCall& call) {
              return call.op == "conv2d_grad_input" &&
                     !call.attrs.String("norm").empty();
            }),
            c.lowering >= NormLowering::kGradients);
  EXPECT_EQ(any([](const codegen::LibraryCall& call) {
              return call.op == "conv2d_grad_weight" &&
                     !call.attrs.String("prologue").empty();
            }),
            c.lowering >= NormLowering::kPrologues);
  training.Step(train, ShareOf(c.dtype));
}

INSTANTIATE_TEST_SUITE_P(
    Models, EmulatedNormLowerings,
    ::testing::Values(LoweringCase{"SeparateF32", "resnet18", DType::kF32,
                                   NormLowering::kSeparate},
                      LoweringCase{"SeparateF16Unfused", "resnet18",
                                   DType::kF16, NormLowering::kSeparate, false},
                      LoweringCase{"StatisticsF32", "resnet18", DType::kF32,
                                   NormLowering::kStatistics},
                      LoweringCase{"StatisticsF16", "resnet18", DType::kF16,
                                   NormLowering::kStatistics},
                      LoweringCase{"GradientsF32", "resnet18", DType::kF32,
                                   NormLowering::kGradients},
                      LoweringCase{"GradientsF16", "resnet18", DType::kF16,
                                   NormLowering::kGradients},
                      LoweringCase{"ProloguesF32", "resnet18", DType::kF32,
                                   NormLowering::kPrologues},
                      LoweringCase{"ProloguesF16", "resnet18", DType::kF16,
                                   NormLowering::kPrologues},
                      LoweringCase{"VggProloguesF32", "vgg16-bn", DType::kF32,
                                   NormLowering::kPrologues},
                      LoweringCase{"VggGradientsF16", "vgg16-bn", DType::kF16,
                                   NormLowering::kGradients},
                      LoweringCase{"VggProloguesF16", "vgg16-bn", DType::kF16,
                                   NormLowering::kPrologues}),
    [](const auto& param) { return std::string(param.param.name); });

// Collectives run beside the backward kernels, in whatever order the events
// leave open.
TEST(EmulatedRanks, StepsAreThoseOfOneRankInAnyOrder) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    passes::PassOptions options = OptionsOf({"", "", dtype});
    options.buckets = passes::ParseBucketPolicy("buckets", "cap:0.1");
    EmulatedTraining training(dtype == DType::kF32 ? 5 : 6, options, 4);
    const int train =
        training.Add(NarrowVgg16Bn(Phase::kTrain, kBatch), ProgramKind::kTrain);
    const auto& steps = training.session().plan(train).steps;
    EXPECT_GE(std::count_if(steps.begin(), steps.end(),
                            [](const codegen::Step& step) {
                              return step.kind ==
                                     codegen::StepKind::kCollective;
                            }),
              4);
    for (int i = 0; i < 3; ++i) training.Step(train, ShareOf(dtype));
  }
}

// Normalisation over all ranks' batches: they gather statistics on the way.
TEST(EmulatedRanks, NormaliseTogether) {
  constexpr int kRanks = 4;
  const auto build = [](int64_t norm_ranks) {
    const models::ModelOptions options{.batch = kBatch,
                                       .image_size = 32,
                                       .num_classes = 10,
                                       .norm_ranks = norm_ranks};
    return models::BuildModel("resnet20-cifar", Phase::kTrain, options).graph;
  };
  EmulatedTraining training(7, OptionsOf({}), kRanks);
  const int train = training.Add(build(kRanks), ProgramKind::kTrain, build(1));
  const auto& calls = training.session().plan(train).calls;
  EXPECT_TRUE(std::any_of(calls.begin(), calls.end(),
                          [](const codegen::LibraryCall& call) {
                            return call.op == "all_gather";
                          }));
  for (int i = 0; i < 2; ++i) training.Step(train, ShareOf(DType::kF32));
}

}  // namespace
}  // namespace fusor::test
