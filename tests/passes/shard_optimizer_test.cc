#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/shard.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/interpreted_ranks.h"
#include "tests/testing/numeric.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

using ir::Tensor;
using ::testing::HasSubstr;

PassOptions Sharded(int ranks) {
  PassOptions options;
  options.world_size = ranks;
  options.shard_optimizer = true;
  options.optimizer.momentum = 0.5;
  options.optimizer.weight_decay = 0;
  return options;
}

// A large parameter, and a small one.
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
  // 1250 elements a part, in whole cache lines 1280.
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

TEST(ShardOptimizer, UpdatesPartsAndGathersThem) {
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

// Two steps of each, from the same parameters.
TEST(ShardOptimizer, RanksGetWhatTheyWouldWithoutParts) {
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

TEST(ShardOptimizer, RefusesWhatNeedsWholeGradients) {
  const auto graph = test::ParseOrDie(kGradients);
  std::vector<std::pair<PassOptions, std::string>> cases(3,
                                                         {Sharded(2), "LARS"});
  cases[0].first.optimizer.kind = OptimizerKind::kLars;
  cases[1] = {Sharded(2), "clipping"};
  cases[1].first.optimizer.clip_norm = 1;
  cases[2] = {Sharded(2), "dynamic loss scale"};
  cases[2].first.loss_scale.dynamic = true;
  for (const auto& [options, what] : cases) {
    try {
      test::RunPass(ShardOptimizer, *graph, options);
      FAIL() << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_THAT(e.what(), HasSubstr("expected no " + what));
    }
  }
}

}  // namespace
}  // namespace fusor::passes
