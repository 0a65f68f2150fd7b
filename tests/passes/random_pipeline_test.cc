// Runs random graphs through random subsets of the pipeline.

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/io/printer.h"
#include "ir/op.h"
#include "ir/support/philox.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

using ir::EvalMode;
using ir::Graph;
using ir::Tensor;

constexpr int kSeeds = 200;

test::RandomGraphOptions GraphOptions(uint64_t seed) {
  test::RandomGraphOptions options;
  options.nodes = 10 + static_cast<int>(seed % 50);
  options.layouts = seed % 2 == 1;
  options.states = seed % 3 == 1;
  options.dtypes = {ir::DType::kF32};
  if (seed % 4 >= 2) {
    options.dtypes = {ir::DType::kF32, ir::DType::kF16, ir::DType::kBF16,
                      ir::DType::kF64, ir::DType::kI32, ir::DType::kU8};
  }
  return options;
}

// Compares bits: NaN equals NaN, but 0 and -0 differ.
bool SameBits(const Tensor& a, const Tensor& b) {
  return a.data.size() == b.data.size() &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(),
                    [](double x, double y) {
                      return std::bit_cast<uint64_t>(x) ==
                                 std::bit_cast<uint64_t>(y) ||
                             (x != x && y != y);
                    });
}

// Checks that every output of `after` is bit-identical to that of `before`.
void ExpectSameResults(const Graph& before, const Graph& after, uint64_t seed) {
  const std::vector<Tensor> inputs = test::RandomInputs(before, seed);
  for (const EvalMode mode : {EvalMode::kExact, EvalMode::kTyped}) {
    const auto expected = Interpret(before, inputs, mode);
    const auto actual = Interpret(after, inputs, mode);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(SameBits(actual[i], expected[i]))
          << (mode == EvalMode::kExact ? "exact" : "typed") << " output "
          << before.outputs()[i].name << "\n"
          << Print(before) << Print(after);
    }
  }
}

// Disables each pass of the pipeline with probability one half.
std::set<std::string> RandomSubset(uint64_t seed) {
  std::set<std::string> disabled;
  uint32_t i = 0;
  for (const PassEntry& entry : Pipeline()) {
    if (Philox({i++, 0, 0, 0}, seed)[0] % 2 == 0) {
      disabled.insert(std::string(entry.name));
    }
  }
  return disabled;
}

class RandomPipelineTest : public testing::Test {
 protected:
  PassContext Context(PassOptions options = {}) {
    return PassContext(target_, std::move(options));
  }

  test::BareTarget target_;
  const RunnerOptions verify_{.verification = passes::Verification::kPasses,
                              .observer = {}};
};

TEST_F(RandomPipelineTest, SimplifyKeepsEveryBitInBothModes) {
  size_t before = 0;
  size_t after = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const auto graph = test::RandomGraph(seed, GraphOptions(seed));
    const auto simple = graph->Clone();
    PassContext context = Context();
    Simplify(*simple, context);
    ExpectSameResults(*graph, *simple, seed);
    before += graph->nodes().size();
    after += simple->nodes().size();
  }
  EXPECT_LT(after, before) << "nothing was simplified";
}

TEST_F(RandomPipelineTest, SubsetsOfPassesKeepEveryBit) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const auto graph = test::RandomGraph(seed, GraphOptions(seed));
    const auto optimized = graph->Clone();
    PassOptions options;
    options.disabled = RandomSubset(seed);
    options.fusion = seed % 5 != 0;
    // Layouts are assigned only once, to row-major graphs.
    if (GraphOptions(seed).layouts) options.disabled.insert("assign_layout");
    PassContext context = Context(options);
    RunPipeline(*optimized, context, Stage::kForward, verify_);
    RunPipeline(*optimized, context, Stage::kOptimize, verify_);
    ExpectSameResults(*graph, *optimized, seed);
  }
}

TEST_F(RandomPipelineTest, ASecondRunChangesNothing) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const auto graph = test::RandomGraph(seed, GraphOptions(seed));
    for (bool (*pass)(Graph&, PassContext&) :
         {Simplify, DropStopGradient, FuseNormActivation, FuseConvEpilogue}) {
      PassContext context = Context();
      pass(*graph, context);
      const auto once = graph->Clone();
      EXPECT_FALSE(pass(*graph, context));
      EXPECT_TRUE(SameGraph(*once, *graph));
    }
  }
}

TEST_F(RandomPipelineTest, ThePipelineIsDeterministic) {
  for (uint64_t seed = 0; seed < kSeeds / 4; ++seed) {
    SCOPED_TRACE(seed);
    std::string text;
    for (int run = 0; run < 2; ++run) {
      const auto graph = test::RandomGraph(seed, GraphOptions(seed));
      PassContext context = Context();
      RunPipeline(*graph, context, Stage::kForward, verify_);
      RunPipeline(*graph, context, Stage::kOptimize, verify_);
      if (run == 0) text = Print(*graph);
      EXPECT_EQ(Print(*graph), text);
    }
  }
}

std::unique_ptr<Graph> Model(uint64_t seed) {
  test::RandomGraphOptions options;
  options.nodes = 10 + static_cast<int>(seed % 20);
  options.ops =
      test::kElementwise | test::kBroadcast | test::kReduce | test::kMovement;
  return test::RandomModel(seed, options);
}

// Loss, gradients and new state must not depend on the enabled passes.
TEST_F(RandomPipelineTest, SubsetsOfPassesKeepEveryBitOfATrainingStep) {
  for (uint64_t seed = 0; seed < kSeeds / 2; ++seed) {
    SCOPED_TRACE(seed);
    PassOptions options;
    options.keep_gradients = true;
    options.disabled = RandomSubset(seed);
    options.disabled.erase("autodiff");
    options.disabled.erase("optimizer_update");
    const auto optimized = Model(seed);
    PassContext context = Context(options);
    // Merging nodes before autodiff changes the order in which gradients are
    // added, so the reference is cloned after the forward stage.
    RunPipeline(*optimized, context, Stage::kForward, verify_);
    const auto reference = optimized->Clone();
    options.disabled.insert("simplify");
    PassContext plain = Context(options);
    RunPipeline(*reference, plain, Stage::kTraining, verify_);
    RunPipeline(*optimized, context, Stage::kTraining, verify_);
    RunPipeline(*optimized, context, Stage::kOptimize, verify_);
    ASSERT_EQ(optimized->inputs().size(), reference->inputs().size());
    ASSERT_EQ(optimized->outputs().size(), reference->outputs().size());
    const std::vector<Tensor> inputs = test::RandomInputs(*reference, seed);
    const auto expected = Interpret(*reference, inputs, EvalMode::kTyped);
    const auto actual = Interpret(*optimized, inputs, EvalMode::kTyped);
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string& name = reference->outputs()[i].name;
      const int output = optimized->FindOutput(name);
      ASSERT_GE(output, 0) << name;
      EXPECT_TRUE(SameBits(actual[output], expected[i])) << name;
    }
  }
}

}  // namespace
}  // namespace fusor::passes
