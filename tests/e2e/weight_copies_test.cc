// Cached cast weights in 16 bits, compiled for the CPU. A step is bit-identical
// to one that casts and packs the weights itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "codegen/compiler.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/target/target.h"
#include "ir/weight_copy.h"
#include "passes/training/training_state.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using ir::Tensor;
using runtime::Session;

constexpr int64_t kBatch = 4;

// Programs of one model in a session with or without the pass.
class TrainingSession {
 public:
  TrainingSession(passes::PassOptions options, bool copies)
      : session_(runtime::LoadBackend("cpu"), {}) {
    if (!copies) options.disabled.insert("cache_weight_casts");
    options_.passes = std::move(options);
    options_.verification = passes::Verification::kAll;
    train_ =
        &session_.Compile(SmallResidual(kBatch), ProgramKind::kTrain, options_);
    if (options_.passes.micro_batches == passes::MicroBatches::kFinish) {
      add_ = &session_.Compile(SmallResidual(kBatch), ProgramKind::kAccumulate,
                               options_);
    }
    session_.state().Initialize(1);
  }

  // Runs a step. Returns the loss.
  double Step(uint64_t seed) { return Run(*train_, seed); }
  double Add(uint64_t seed) { return Run(*add_, seed); }

  double Run(runtime::Program& program, uint64_t seed) {
    const Tensor images =
        RandomTensor({DType::kF32, {kBatch, 3, 8, 8}, {}}, seed);
    const Tensor labels =
        RandomTensor({DType::kI32, {kBatch}, {}}, seed + 1, 0, 4);
    Feed<float>(program, "images", images);
    Feed<int32_t>(program, "labels", labels);
    Feed<float>(program, "lr", {{DType::kF32, {}, {}}, {0.1}});
    program.Run();
    return program.ReadScalar(program.FindOutput("loss"));
  }

  template <typename T>
  void Feed(runtime::Program& program, const char* name, const Tensor& tensor) {
    if (!program.HasInput(name)) return;
    const std::vector<T> values(tensor.data.begin(), tensor.data.end());
    program.SetInput(program.FindInput(name), values.data(),
                     values.size() * sizeof(T));
  }

  // Compiles an evaluation with the training program's state.
  runtime::Program& AddEvaluation(bool averages) {
    auto graph = SmallResidual(kBatch);
    if (averages) passes::ReadAverages(*graph);
    return session_.Compile(std::move(graph), ProgramKind::kEval, options_);
  }

  uint64_t Hash() {
    runtime::StateSnapshot snapshot;
    runtime::TakeSnapshot(session_.state(), snapshot);
    return runtime::StateHash(snapshot);
  }

  int CountCopies(runtime::Program& program) const {
    int copies = 0;
    for (const codegen::PlanInput& input : program.plan().inputs) {
      copies += input.role == ir::InputRole::kWeightCopy;
    }
    return copies;
  }

  // Checks that every copy equals its rounded weight.
  void ExpectFresh() {
    for (const codegen::PlanInput& input : train_->plan().inputs) {
      if (input.role != ir::InputRole::kWeightCopy) continue;
      std::vector<float> expected =
          session_.state().Read(ir::CopiedWeight(input.attrs));
      for (float& x : expected) {
        x = static_cast<float>(ir::RoundTo(ir::CopyRounding(input.attrs), x));
      }
      EXPECT_EQ(session_.state().Read(input.name), expected) << input.name;
    }
  }

  Session& session() { return session_; }
  runtime::Program& train() const { return *train_; }

 private:
  Session session_;
  codegen::CompileOptions options_;
  runtime::Program* train_ = nullptr;
  runtime::Program* add_ = nullptr;
};

struct Recipe {
  const char* name;
  std::function<void(passes::PassOptions&)> set;
};

const Recipe kRecipes[] = {
    {"plain", [](passes::PassOptions&) {}},
    {"fp16",
     [](passes::PassOptions& o) {
       o.precision.dtype = DType::kF16;
       // Fast rounding keeps f32 if a kernel casts to 16 bits and back.
       o.eager_rounding = true;
       o.loss_scale.initial = 128;
     }},
    {"eager", [](passes::PassOptions& o) { o.eager_rounding = true; }},
    {"unfused", [](passes::PassOptions& o) { o.fusion = false; }},
    {"averages",
     [](passes::PassOptions& o) {
       o.optimizer.ema_decay = 0.9;
       o.optimizer.nesterov = true;
     }},
    {"lars",
     [](passes::PassOptions& o) {
       o.optimizer.kind = passes::OptimizerKind::kLars;
     }},
    {"adam",
     [](passes::PassOptions& o) {
       o.optimizer.kind = passes::OptimizerKind::kAdam;
     }},
    {"lamb",
     [](passes::PassOptions& o) {
       o.optimizer.kind = passes::OptimizerKind::kLamb;
     }},
    {"everything",
     [](passes::PassOptions& o) {
       o.precision.narrow_gradients = true;
       o.loss_scale = {.initial = 1024, .dynamic = true};
       o.optimizer.kind = passes::OptimizerKind::kLars;
       o.optimizer.clip_norm = 1;
       o.optimizer.ema_decay = 0.9;
       o.micro_batches = passes::MicroBatches::kFinish;
     }},
};

passes::PassOptions OptionsOf(const Recipe& recipe) {
  passes::PassOptions options;
  options.precision.dtype = DType::kBF16;
  // Without bf16, the CPU casts weights to bf16 and back, as for fp16.
  options.eager_rounding = !ir::DefaultCpuTarget().bf16_matmul;
  recipe.set(options);
  return options;
}

class WeightCopies : public testing::TestWithParam<Recipe> {};

TEST_P(WeightCopies, ChangeNoBitOfAStep) {
  TrainingSession with(OptionsOf(GetParam()), true);
  TrainingSession without(OptionsOf(GetParam()), false);
  ASSERT_GT(with.CountCopies(with.train()), 0);
  ASSERT_EQ(without.CountCopies(without.train()), 0);
  EXPECT_EQ(with.Hash(), without.Hash());
  with.ExpectFresh();
  for (uint64_t step = 1; step <= 3; ++step) {
    if (OptionsOf(GetParam()).micro_batches == passes::MicroBatches::kFinish) {
      EXPECT_EQ(with.Add(10 * step), without.Add(10 * step));
    }
    EXPECT_EQ(with.Step(step), without.Step(step));
    EXPECT_EQ(with.Hash(), without.Hash());
    with.ExpectFresh();
  }
  for (const bool averages : {false, true}) {
    if (averages && OptionsOf(GetParam()).optimizer.ema_decay == 0) continue;
    runtime::Program& a = with.AddEvaluation(averages);
    runtime::Program& b = without.AddEvaluation(averages);
    EXPECT_EQ(with.CountCopies(a) > 0, !averages);
    EXPECT_EQ(with.Run(a, 5), without.Run(b, 5));
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, WeightCopies, testing::ValuesIn(kRecipes),
                         [](const auto& recipe) { return recipe.param.name; });

// Counts calls that convert state to another dtype or layout.
int CountRepacks(const codegen::Plan& plan) {
  int repacks = 0;
  for (const codegen::Step& step : plan.steps) {
    if (step.op_class != "copy") continue;
    const int arena = plan.buffers[step.args[0]].arena;
    repacks += plan.arenas[arena].kind == codegen::ArenaKind::kState;
  }
  return repacks;
}

// Only the update casts and packs the weights of convolutions and matmuls.
TEST(WeightCopiesOfAStep, LeaveNoPackingToTheForwardAndBackward) {
  if (!ir::DefaultCpuTarget().bf16_matmul) {
    GTEST_SKIP() << "the interpreter, which runs bf16 here, packs nothing";
  }
  TrainingSession training(OptionsOf(kRecipes[0]), true);
  const auto counted = [](TrainingSession& t) {
    return t.train().report().counters.at("weight_repacks");
  };
  EXPECT_EQ(counted(training), 0);
  EXPECT_EQ(CountRepacks(training.train().plan()), 0);
  TrainingSession packing(OptionsOf(kRecipes[0]), false);
  EXPECT_GT(counted(packing), 0);
  EXPECT_EQ(CountRepacks(packing.train().plan()), counted(packing));
}

TEST(WeightCopiesOfAStep, OverflowsLeaveThemAsTheyAre) {
  passes::PassOptions options = OptionsOf(kRecipes[0]);
  options.loss_scale = {.initial = 1024, .dynamic = true};
  TrainingSession training(options, true);
  training.Step(1);
  const std::vector<float> before =
      training.session().state().Read("fc.weight");
  Session& session = training.session();
  const std::vector<float> scale = {std::numeric_limits<float>::infinity()};
  session.state().Write(ir::kLossScale, scale);
  training.Step(2);
  EXPECT_EQ(session.state().Read(ir::kOverflows)[0], 1);
  EXPECT_EQ(session.state().Read("fc.weight"), before);
  training.ExpectFresh();
}

TEST(WeightCopiesOfAStep, AreInNoCheckpointAndFollowOneThatIsLoaded) {
  TemporaryFolder folder;
  TrainingSession first(OptionsOf(kRecipes[0]), true);
  first.Step(1);
  runtime::StateSnapshot snapshot;
  runtime::TakeSnapshot(first.session().state(), snapshot);
  runtime::WriteCheckpointFiles(folder.path(), {}, snapshot);
  const runtime::Checkpoint checkpoint = runtime::ReadCheckpoint(folder.path());
  for (const ir::TensorSource& tensor : checkpoint.tensors) {
    EXPECT_FALSE(ir::ParseWeightCopyName(tensor.name)) << tensor.name;
  }
  TrainingSession second(OptionsOf(kRecipes[0]), true);
  runtime::RestoreState(second.session().state(), checkpoint);
  second.ExpectFresh();
  EXPECT_EQ(second.Hash(), first.Hash());
  EXPECT_EQ(second.Step(2), first.Step(2));
  EXPECT_EQ(second.Hash(), first.Hash());
  // A run without cached copies can resume from it, too.
  TrainingSession third(OptionsOf(kRecipes[0]), false);
  runtime::RestoreState(third.session().state(), checkpoint);
  third.Step(2);
  EXPECT_EQ(third.Hash(), first.Hash());
}

// Accumulators are stored only between updates.
TEST(SumsOfMicroBatches, AreStoredUntilTheUpdate) {
  passes::PassOptions options;
  options.micro_batches = passes::MicroBatches::kFinish;
  TrainingSession first(options, true);
  const auto stored = [&](TrainingSession& training) {
    TemporaryFolder folder;
    runtime::StateSnapshot snapshot;
    runtime::TakeSnapshot(training.session().state(), snapshot);
    runtime::WriteCheckpointFiles(folder.path(), {}, snapshot);
    return runtime::ReadCheckpoint(folder.path());
  };
  const auto has_sum = [](const runtime::Checkpoint& checkpoint) {
    return std::any_of(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                       [](const auto& tensor) {
                         return tensor.name == "accumulated/fc.weight";
                       });
  };
  first.Add(1);
  const runtime::Checkpoint between = stored(first);
  EXPECT_TRUE(has_sum(between));
  first.Step(2);
  const runtime::Checkpoint after = stored(first);
  EXPECT_FALSE(has_sum(after));
  const uint64_t hash = first.Hash();
  TrainingSession second(options, true);
  runtime::RestoreState(second.session().state(), between);
  second.Step(2);
  EXPECT_EQ(second.Hash(), hash);
  // Restoring overwrites any accumulated gradients.
  second.Add(3);
  runtime::RestoreState(second.session().state(), after);
  first.Add(4);
  second.Add(4);
  first.Step(5);
  second.Step(5);
  EXPECT_EQ(second.Hash(), first.Hash());
  runtime::Checkpoint torn = between;
  std::erase_if(torn.tensors, [](const auto& tensor) {
    return tensor.name == "accumulated/fc.weight";
  });
  EXPECT_THROW(runtime::RestoreState(second.session().state(), torn), Error);
}

TEST(WeightCopiesOfAStep, FollowWeightsThatAreLoaded) {
  TemporaryFolder folder;
  TrainingSession first(OptionsOf(kRecipes[0]), true);
  first.Step(1);
  const std::string path = folder.path() + "/w.safetensors";
  runtime::SaveWeights(first.session().state(), path);
  TrainingSession second(OptionsOf(kRecipes[0]), true);
  runtime::LoadWeights(second.session().state(), path);
  second.ExpectFresh();
  EXPECT_EQ(second.session().state().Read("fc.weight"),
            first.session().state().Read("fc.weight"));
}

}  // namespace
}  // namespace fusor::test
