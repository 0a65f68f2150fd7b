#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/shard.h"
#include "ir/verifier.h"
#include "passes/collectives/shard_layout.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/interpreted_ranks.h"
#include "tests/testing/numeric.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

using ir::Tensor;

PassOptions Sharded(int ranks) {
  PassOptions options;
  options.world_size = ranks;
  options.shard_optimizer = true;
  options.optimizer.momentum = 0.5;
  options.optimizer.weight_decay = 0;
  return options;
}

// One large and one small parameter.
constexpr char kGradients[] = R"(graph g {
  %w = weight : f32[5,1000]
  %b = bias : f32[10]
  %x = data : f32[5,1000]
  %y = data : f32[10]
  %dw = all_reduce(%x) : f32[5,1000] @"fc"
  %db = all_reduce(%y) : f32[10] @"fc"
  return %dw as "grad/w", %db as "grad/b"
})";

TEST(ShardOptimizer, ScattersSumsOfLargeGradients) {
  const auto graph = test::ParseOrDie(kGradients);
  EXPECT_TRUE(test::RunPass(ShardOptimizer, *graph, Sharded(4)));
  // A shard has 1250 elements, padded to 1280 for whole cache lines.
  test::ExpectSameGraph(R"(graph g {
    %w = weight : f32[5,1000]
    %b = bias : f32[10]
    %x = data : f32[5,1000]
    %y = data : f32[10]
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[1280]
    %dw = reduce_scatter(%x) {parts=4} : f32[1280] @"fc"
    %db = all_reduce(%y) : f32[10] @"fc"
    return %dw as "grad/w", %db as "grad/b"
  })",
                        *graph, test::Names::kCompare);
}

TEST(ShardOptimizer, ShardsHaveTheParametersLayout) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[8,20]
    %y = data : f32[8,64]
    %w = weight : f32[64,20]{ba}
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
    %d = matmul(%y, %x) {transpose_a=true} : f32[64,20]
    %dw = copy(%d) {layout="ba"} : f32[64,20]{ba}
    %r = copy(%dw) {layout=""} : f32[64,20]
    %s = reduce_scatter(%r) {parts=2} : f32[640]
    %h = mul(%s, %s) : f32[640]
    %p = sub(%"shard/w", %h) : f32[640]
    %all = all_gather(%p) {ranks=2} : f32[2,640]
    %flat = reshape(%all) {shape=[1280]} : f32[1280]
    %rows = reshape(%flat) {shape=[64,20]} : f32[64,20]
    %n = copy(%rows) {layout="ba"} : f32[64,20]{ba}
    return %p as "shard/w" -> %"shard/w", %n as "w" -> %w
  })");
  EXPECT_TRUE(ShardInPhysicalLayout(*graph));
  ir::Verify(*graph);
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[8,20]
    %y = data : f32[8,64]
    %w = weight : f32[64,20]{ba}
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
    %d = matmul(%y, %x) {transpose_a=true} : f32[64,20]
    %dw = copy(%d) {layout="ba"} : f32[64,20]{ba}
    %f = flatten(%dw) {order="ba"} : f32[1280]
    %s = reduce_scatter(%f) {parts=2} : f32[640]
    %h = mul(%s, %s) : f32[640]
    %p = sub(%"shard/w", %h) : f32[640]
    %all = all_gather(%p) {ranks=2} : f32[2,640]
    %flat = reshape(%all) {shape=[1280]} : f32[1280]
    %n = unflatten(%flat) {order="ba", shape=[64,20]} : f32[64,20]{ba}
    return %p as "shard/w" -> %"shard/w", %n as "w" -> %w
  })",
                        *graph);
}

// A gradient in another layout than the parameter is copied. A row-major
// parameter keeps its shards.
TEST(ShardOptimizer, GradientsAreCopiedToTheLayoutOfShards) {
  const std::string before = R"(
    %x = data : f32[64,20]
    %w = weight : f32[64,20])";
  const std::string after = R"(
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
    %s = reduce_scatter(%x) {parts=2} : f32[640]
    %p = sub(%"shard/w", %s) : f32[640]
    return %p as "shard/w" -> %"shard/w"
  })";
  EXPECT_FALSE(
      ShardInPhysicalLayout(*test::ParseOrDie("graph g {" + before + after)));
  const auto graph = test::ParseOrDie("graph g {" + before + "{ba}" + after);
  EXPECT_TRUE(ShardInPhysicalLayout(*graph));
  const ir::Node& flatten = *graph->nodes()[1];
  ASSERT_EQ(flatten.op_name(), "flatten");
  EXPECT_EQ(flatten.input(0)->producer()->op_name(), "copy");
  EXPECT_EQ(ToString(flatten.input(0)->type()), "f32[64,20]{ba}");
}

TEST(ShardOptimizer, UpdatesShardsAndGathersThem) {
  const auto graph = test::ParseOrDie(kGradients);
  EXPECT_TRUE(test::RunPass(ShardOptimizer, *graph, Sharded(4)));
  EXPECT_TRUE(test::RunPass(OptimizerUpdate, *graph, Sharded(4)));
  const ir::Value* momentum = graph->FindInput("momentum/w");
  ASSERT_NE(momentum, nullptr);
  EXPECT_EQ(momentum->type().shape, ir::Shape{1280});
  EXPECT_EQ(graph->FindInput("momentum/b")->type().shape, ir::Shape{10});
  const ir::Output& whole =
      graph->outputs()[static_cast<size_t>(graph->FindOutput("w"))];
  EXPECT_EQ(whole.value->type().shape, (ir::Shape{5, 1000}));
  EXPECT_EQ(graph->input(whole.alias)->name(), "w");
  int gathers = 0;
  for (const auto& node : graph->nodes()) {
    gathers += node->op_name() == "all_gather" ? 1 : 0;
  }
  EXPECT_EQ(gathers, 1);
}

// Runs two steps with and without shards from the same parameters.
TEST(ShardOptimizer, ResultsEqualThoseWithoutShards) {
  for (const int ranks : {2, 3, 4}) {
    const auto parts = test::ParseOrDie(kGradients);
    EXPECT_TRUE(test::RunPass(ShardOptimizer, *parts, Sharded(ranks)));
    EXPECT_TRUE(test::RunPass(OptimizerUpdate, *parts, Sharded(ranks)));
    const auto whole = test::ParseOrDie(kGradients);
    EXPECT_TRUE(test::RunPass(OptimizerUpdate, *whole, Sharded(ranks)));
    const auto inputs = [&](const ir::Graph& graph, int rank) {
      std::vector<Tensor> tensors;
      for (const ir::Input& input : graph.inputs()) {
        const ir::TensorType& type = input.value->type();
        const std::string& name = input.value->name();
        const bool data = name == "x" || name == "y";
        if (ir::IsShard(input.attrs)) {
          const bool parameter = name == ir::ShardName("w");
          Tensor from =
              test::RandomTensor({type.dtype, {5000}, {}}, parameter ? 1 : 2);
          Tensor part{type, {}};
          const auto n = static_cast<size_t>(type.num_elements());
          for (size_t i = rank * n; i < (rank + 1) * n; ++i) {
            part.data.push_back(i < from.data.size() ? from.data[i] : 0);
          }
          tensors.push_back(part);
        } else {
          const uint64_t seed = name == "w"            ? 1
                                : name == "momentum/w" ? 2
                                : data ? 10 + static_cast<uint64_t>(rank)
                                       : 3;
          tensors.push_back(test::RandomTensor(type, seed));
        }
      }
      return tensors;
    };
    std::vector<std::vector<Tensor>> of_parts, of_whole;
    for (int r = 0; r < ranks; ++r) {
      of_parts.push_back(inputs(*parts, r));
      of_whole.push_back(inputs(*whole, r));
    }
    const auto mode = ir::EvalMode::kTyped;
    const auto actual = test::InterpretRanks(*parts, of_parts, mode);
    const auto expected = test::InterpretRanks(*whole, of_whole, mode);
    for (const char* name : {"w", "b", "momentum/b"}) {
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(actual[r][parts->FindOutput(name)].data,
                  expected[0][whole->FindOutput(name)].data)
            << name << " of rank " << r << " of " << ranks;
      }
    }
    std::vector<double> momentum;
    for (int r = 0; r < ranks; ++r) {
      const auto& part = actual[r][parts->FindOutput("momentum/w")].data;
      momentum.insert(momentum.end(), part.begin(), part.end());
    }
    momentum.resize(5000);
    EXPECT_EQ(momentum, expected[0][whole->FindOutput("momentum/w")].data);
  }
}

TEST(ShardOptimizer, LeavesOneRankAlone) {
  const auto graph = test::ParseOrDie(kGradients);
  EXPECT_FALSE(test::RunPass(ShardOptimizer, *graph, Sharded(1)));
}

// Returns the inputs of `rank`. A sharded input is the rank's shard of the
// tensor in the unsharded graph.
std::vector<Tensor> InputsOf(const ir::Graph& graph, int rank, bool overflow) {
  std::vector<Tensor> tensors;
  for (const ir::Input& input : graph.inputs()) {
    const ir::TensorType& type = input.value->type();
    const std::string& name = input.value->name();
    if (input.role == ir::InputRole::kData) {
      tensors.push_back(
          test::RandomTensor(type, (name == "x" ? 10 : 20) + uint64_t(rank)));
      // The overflow is in rank 0's gradient, in the shard that rank 1 owns.
      if (overflow && name == "x" && rank == 0)
        tensors.back().data[4000] = 1e39;
      continue;
    }
    if (name == "loss_scale") {
      tensors.push_back({type, {4}});
      continue;
    }
    if (type.dtype != ir::DType::kF32) {
      tensors.push_back({type, {3}});
      continue;
    }
    const bool parameter = name == "w" || name == ir::ShardName("w");
    const uint64_t seed = parameter ? 1 : name == "momentum/w" ? 2 : 3;
    if (!ir::IsShard(input.attrs)) {
      tensors.push_back(test::RandomTensor(type, seed));
      continue;
    }
    const Tensor from = test::RandomTensor({type.dtype, {5000}, {}}, seed);
    Tensor part{type, {}};
    const auto n = static_cast<size_t>(type.num_elements());
    for (size_t i = rank * n; i < (rank + 1) * n; ++i) {
      part.data.push_back(i < from.data.size() ? from.data[i] : 0);
    }
    tensors.push_back(std::move(part));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!graph.input(i)->name().starts_with("second_moment/")) continue;
    for (double& x : tensors[i].data) x = std::abs(x);
  }
  return tensors;
}

// Each rank's results after the passes that turn gradients into updates.
struct Stepped {
  std::unique_ptr<ir::Graph> graph;
  std::vector<std::vector<Tensor>> ranks;

  const std::vector<double>& Of(int rank, const std::string& name) const {
    return ranks[static_cast<size_t>(rank)]
                [static_cast<size_t>(graph->FindOutput(name))]
                    .data;
  }
};

Stepped Step(PassOptions options, bool sharded, bool overflow = false) {
  options.shard_optimizer = sharded;
  Stepped step{test::ParseOrDie(kGradients), {}};
  EXPECT_EQ(test::RunPass(ShardOptimizer, *step.graph, options), sharded);
  test::RunPass(ScaleGradients, *step.graph, options);
  test::RunPass(OptimizerUpdate, *step.graph, options);
  test::RunPass(SkipOverflow, *step.graph, options);
  std::vector<std::vector<Tensor>> inputs;
  for (int r = 0; r < options.world_size; ++r) {
    inputs.push_back(InputsOf(*step.graph, r, overflow));
  }
  step.ranks = test::InterpretRanks(*step.graph, inputs, ir::EvalMode::kTyped);
  return step;
}

// Sums of squares over shards add in another order.
TEST(ShardOptimizer, NormsIncludeAllShards) {
  for (const int ranks : {2, 3, 4}) {
    PassOptions clipped = Sharded(ranks);
    clipped.optimizer.clip_norm = 0.5;
    PassOptions lars = Sharded(ranks);
    lars.optimizer.kind = OptimizerKind::kLars;
    lars.optimizer.weight_decay = 1e-4;
    PassOptions both = lars;
    both.optimizer.clip_norm = 0.5;
    PassOptions lamb = both;
    lamb.optimizer.kind = OptimizerKind::kLamb;
    lamb.optimizer.ema_decay = 0.5;
    for (const PassOptions& options : {clipped, lars, both, lamb}) {
      const Stepped whole = Step(options, false);
      const Stepped parts = Step(options, true);
      for (const char* name : {"w", "b"}) {
        const auto& expected = whole.Of(0, name);
        for (int r = 0; r < ranks; ++r) {
          const auto& actual = parts.Of(r, name);
          ASSERT_EQ(actual.size(), expected.size());
          for (size_t i = 0; i < actual.size(); ++i) {
            ASSERT_NEAR(actual[i], expected[i], 1e-6) << name << " " << i;
          }
          EXPECT_EQ(actual, parts.Of(0, name)) << "rank " << r;
        }
      }
      EXPECT_NE(parts.Of(0, "w"), Step(Sharded(ranks), true).Of(0, "w"));
    }
  }
}

// Without norms, results are bit-identical.
TEST(ShardOptimizer, AdaptiveOptimizersShardTheirState) {
  for (const std::string& name : OptimizerNames()) {
    SCOPED_TRACE(name);
    PassOptions options = Sharded(3);
    options.optimizer.kind = ParseOptimizer(name);
    const Stepped whole = Step(options, false);
    const Stepped parts = Step(options, true);
    for (const ir::Output& output : whole.graph->outputs()) {
      std::vector<double> actual;
      const ir::Value* state = parts.graph->FindInput(output.name);
      const bool sharded = ir::IsShard(
          parts.graph->inputs()[static_cast<size_t>(state->index())].attrs);
      EXPECT_EQ(sharded, output.name.ends_with("/w"));
      for (int r = 0; r < (sharded ? 3 : 1); ++r) {
        const auto& part = parts.Of(r, output.name);
        actual.insert(actual.end(), part.begin(), part.end());
      }
      const auto& expected = whole.Of(0, output.name);
      actual.resize(expected.size());
      if (options.optimizer.kind == OptimizerKind::kLars) {
        EXPECT_THAT(actual, ::testing::Pointwise(::testing::DoubleNear(1e-6),
                                                 expected));
      } else {
        EXPECT_EQ(actual, expected) << output.name;
      }
    }
  }
}

TEST(ShardOptimizer, OverflowOnOneRankKeepsTheStateOfAll) {
  for (const int ranks : {2, 3, 4}) {
    PassOptions options = Sharded(ranks);
    options.loss_scale = {.initial = 4, .dynamic = true};
    options.optimizer.ema_decay = 0.9;
    for (const bool overflow : {false, true}) {
      const Stepped whole = Step(options, false, overflow);
      const Stepped parts = Step(options, true, overflow);
      for (int r = 0; r < ranks; ++r) {
        for (const char* name : {"w", "b", "momentum/b", "loss_scale",
                                 "loss_scale/overflows", "gradients_finite"}) {
          EXPECT_EQ(parts.Of(r, name), whole.Of(0, name))
              << name << " of rank " << r << " of " << ranks;
        }
        if (!overflow) continue;
        const auto inputs = InputsOf(*parts.graph, r, true);
        for (const ir::Output& output : parts.graph->outputs()) {
          if (output.alias < 0 || output.name.starts_with("loss_scale")) {
            continue;
          }
          EXPECT_EQ(parts.Of(r, output.name),
                    inputs[static_cast<size_t>(output.alias)].data)
              << output.name;
        }
      }
      EXPECT_EQ(parts.Of(0, "loss_scale")[0], overflow ? 2 : 4);
    }
  }
}

}  // namespace
}  // namespace fusor::passes
