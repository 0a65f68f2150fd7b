#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/shard.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/interpreted_ranks.h"
#include "tests/testing/numeric.h"

namespace fusor::passes {
namespace {

using ir::Tensor;

PassOptions Sharded() {
  PassOptions options;
  options.world_size = 2;
  options.shard_optimizer = true;
  return options;
}

struct Rotated {
  std::unique_ptr<ir::Graph> graph;
  bool changed = false;
  std::map<std::string, int64_t> counters;
};

Rotated Rotate(std::string_view text, const PassOptions& options) {
  const test::BareTarget target;
  PassContext context(target, options);
  Rotated rotated{test::ParseOrDie(text)};
  rotated.changed = PrefetchParameters(*rotated.graph, context);
  rotated.counters = context.counters();
  ir::Verify(*rotated.graph);
  return rotated;
}

// A weight in another layout than its shards.
constexpr char kShardedStep[] = R"(graph g {
  %x = data : f32[8,20]
  %w = weight : f32[64,20]{ba}
  %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
  %r = copy(%w) {layout=""} : f32[64,20]
  %y = matmul(%x, %r) {transpose_b=true} : f32[8,64]
  %dw = matmul(%y, %x) {transpose_a=true} : f32[64,20]
  %dx = matmul(%y, %r) : f32[8,20]
  %s = reduce_scatter(%dw) {parts=2} : f32[640]
  %p = sub(%"shard/w", %s) : f32[640]
  %all = all_gather(%p) {ranks=2} : f32[2,640]
  %flat = reshape(%all) {shape=[1280]} : f32[1280]
  %rows = reshape(%flat) {shape=[64,20]} : f32[64,20]
  %n = copy(%rows) {layout="ba"} : f32[64,20]{ba}
  return %dx as "dx", %p as "shard/w" -> %"shard/w", %n as "w" -> %w
})";

TEST(PrefetchParameters, GathersWhatTheStepBeforeHasLeft) {
  const Rotated rotated = Rotate(kShardedStep, Sharded());
  EXPECT_TRUE(rotated.changed);
  EXPECT_EQ(rotated.counters.at("prefetched_gathers"), 1);
  EXPECT_EQ(rotated.counters.at("narrow_gathers"), 0);
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[8,20]
    %w = weight : f32[64,20]{ba}
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
    %all = all_gather(%"shard/w") {ranks=2} : f32[2,640]
    %flat = reshape(%all) {shape=[1280]} : f32[1280]
    %rows = reshape(%flat) {shape=[64,20]} : f32[64,20]
    %n = copy(%rows) {layout="ba"} : f32[64,20]{ba}
    %r = copy(%n) {layout=""} : f32[64,20]
    %y = matmul(%x, %r) {transpose_b=true} : f32[8,64]
    %dw = matmul(%y, %x) {transpose_a=true} : f32[64,20]
    %dx = matmul(%y, %r) : f32[8,20]
    %s = reduce_scatter(%dw) {parts=2} : f32[640]
    %p = sub(%"shard/w", %s) : f32[640]
    return %dx as "dx", %p as "shard/w" -> %"shard/w", %n as "w" -> %w
  })",
                        *rotated.graph, test::Names::kCompare);
}

// Forward and backward pass read cached cast weights, as in mixed precision.
constexpr char kNarrow[] = R"(graph g {
  %x = data : bf16[8,20]
  %w = weight : f32[64,20]
  %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
  %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,20]
  %d = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,20]{ba}
  %y = matmul(%x, %c) {transpose_b=true} : bf16[8,64]
  %q = copy(%d) {layout=""} : bf16[64,20]
  %dx = matmul(%y, %q) : bf16[8,20]
  %dw = matmul(%y, %x) {transpose_a=true} : bf16[64,20]
  %g = cast(%dw) {dtype="f32"} : f32[64,20]
  %s = reduce_scatter(%g) {parts=2} : f32[640]
  %p = sub(%"shard/w", %s) : f32[640]
  %all = all_gather(%p) {ranks=2} : f32[2,640] @"fc"
  %flat = reshape(%all) {shape=[1280]} : f32[1280]
  %rows = reshape(%flat) {shape=[64,20]} : f32[64,20]
  %nc = copy(%rows) {layout="", result_dtype="bf16"} : bf16[64,20]
  %nd = copy(%rows) {layout="ba", result_dtype="bf16"} : bf16[64,20]{ba}
  return %dx as "dx", %p as "shard/w" -> %"shard/w", %rows as "w" -> %w,
    %nc as "copy.bf16/w" -> %c, %nd as "copy.bf16.ba/w" -> %d
})";

TEST(PrefetchParameters, GathersInSixteenBitsWhatIsReadSo) {
  const Rotated rotated = Rotate(kNarrow, Sharded());
  EXPECT_TRUE(rotated.changed);
  EXPECT_EQ(rotated.counters.at("narrow_gathers"), 1);
  test::ExpectSameGraph(R"(graph g {
    %x = data : bf16[8,20]
    %w = weight : f32[64,20]
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[640]
    %c = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,20]
    %d = weight_copy {init="copy", of="w", rounding="bf16"} : bf16[64,20]{ba}
    %part = cast(%"shard/w") {dtype="bf16"} : bf16[640] @"fc"
    %all = all_gather(%part) {ranks=2} : bf16[2,640] @"fc"
    %flat = reshape(%all) {shape=[1280]} : bf16[1280] @"fc"
    %rows = reshape(%flat) {shape=[64,20]} : bf16[64,20] @"fc"
    %y = matmul(%x, %rows) {transpose_b=true} : bf16[8,64]
    %nd = copy(%rows) {layout="ba", result_dtype="bf16"} : bf16[64,20]{ba} @"fc"
    %q = copy(%nd) {layout=""} : bf16[64,20]
    %dx = matmul(%y, %q) : bf16[8,20]
    %dw = matmul(%y, %x) {transpose_a=true} : bf16[64,20]
    %g = cast(%dw) {dtype="f32"} : f32[64,20]
    %s = reduce_scatter(%g) {parts=2} : f32[640]
    %p = sub(%"shard/w", %s) : f32[640]
    return %dx as "dx", %p as "shard/w" -> %"shard/w",
      %rows as "copy.bf16/w" -> %c, %nd as "copy.bf16.ba/w" -> %d
  })",
                        *rotated.graph);
}

// LARS reads the f32 weight for its norm.
TEST(PrefetchParameters, GathersAllBitsWhereOneReaderNeedsThem) {
  std::string text = kNarrow;
  text.replace(text.find("  return"), 8,
               "  %sum = reduce(%w) {dims=[0,1], kind=\"sum\"} : f32[]\n"
               "  return %sum as \"sum\",");
  const Rotated rotated = Rotate(text, Sharded());
  EXPECT_EQ(rotated.counters.at("prefetched_gathers"), 1);
  EXPECT_EQ(rotated.counters.at("narrow_gathers"), 0);
  EXPECT_TRUE(rotated.graph->FindInput("w")->uses().empty());
  EXPECT_TRUE(rotated.graph->FindInput("c")->uses().empty());
}

TEST(PrefetchParameters, LeavesAGatherThatOthersRead) {
  std::string text = kShardedStep;
  text.replace(text.find("  return"), 8, "  return %flat as \"flat\",");
  const Rotated rotated = Rotate(text, Sharded());
  EXPECT_FALSE(rotated.changed);
  test::ExpectSameGraph(text, *rotated.graph);
}

TEST(PrefetchParameters, LeavesStepsOfMicroBatchesAndOfOneRank) {
  PassOptions batches = Sharded();
  batches.micro_batches = MicroBatches::kFinish;
  PassOptions alone = Sharded();
  alone.world_size = 1;
  PassOptions whole = Sharded();
  whole.shard_optimizer = false;
  for (const PassOptions& options : {batches, alone, whole}) {
    EXPECT_FALSE(Rotate(kShardedStep, options).changed);
  }
}

// Runs steps on two ranks with different batches. Returns each rank's outputs.
std::vector<std::vector<Tensor>> Steps(const ir::Graph& graph, int steps) {
  std::vector<std::vector<Tensor>> inputs(2);
  for (size_t r = 0; r < 2; ++r) {
    for (const ir::Input& input : graph.inputs()) {
      const ir::TensorType& type = input.value->type();
      const bool part = ir::IsShard(input.attrs);
      const Tensor w = test::RandomTensor({ir::DType::kF32, {1280}, {}}, 3);
      Tensor tensor = test::RandomTensor(type, 10 + r);
      if (part) {
        tensor.data.assign(
            w.data.begin() + static_cast<ptrdiff_t>(r * 640),
            w.data.begin() + static_cast<ptrdiff_t>(r * 640) + 640);
      } else if (input.role != ir::InputRole::kData) {
        tensor.data = w.data;
        for (double& x : tensor.data) x = ir::RoundTo(type.dtype, x);
      }
      inputs[r].push_back(std::move(tensor));
    }
  }
  std::vector<std::vector<Tensor>> seen;
  for (int step = 0; step < steps; ++step) {
    const auto outputs =
        test::InterpretRanks(graph, inputs, ir::EvalMode::kTyped);
    for (size_t r = 0; r < 2; ++r) {
      std::vector<Tensor> kept;
      for (size_t o = 0; o < graph.outputs().size(); ++o) {
        const ir::Output& output = graph.outputs()[o];
        if (output.alias >= 0) {
          inputs[r][static_cast<size_t>(output.alias)] = outputs[r][o];
        }
        if (output.name == "dx" || output.name == "shard/w") {
          kept.push_back(outputs[r][o]);
        }
      }
      seen.push_back(std::move(kept));
    }
  }
  return seen;
}

TEST(PrefetchParameters, StepsHaveTheSameBits) {
  for (const char* text : {kShardedStep, kNarrow}) {
    const auto expected = Steps(*test::ParseOrDie(text), 3);
    const auto actual = Steps(*Rotate(text, Sharded()).graph, 3);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i].size(), 2U);
      for (size_t o = 0; o < 2; ++o) {
        EXPECT_EQ(actual[i][o].data, expected[i][o].data) << i << " " << o;
      }
    }
    EXPECT_NE(actual[0][0].data, actual[4][0].data);
  }
}

// Three layers of which the last is large. The first must wait only for its own
// parameter.
constexpr char kLayers[] = R"(graph g {
  %x = data : f32[64,64]
  %w1 = weight : f32[64,64]
  %w2 = weight : f32[64,64]
  %w3 = weight : f32[64,64]
  %"shard/w3" = optimizer_state {init="constant", shard_of="w3", value=0.0} : f32[2048]
  %"shard/w2" = optimizer_state {init="constant", shard_of="w2", value=0.0} : f32[2048]
  %"shard/w1" = optimizer_state {init="constant", shard_of="w1", value=0.0} : f32[2048]
  %a3 = all_gather(%"shard/w3") {ranks=2} : f32[2,2048]
  %g3 = reshape(%a3) {shape=[64,64]} : f32[64,64]
  %a2 = all_gather(%"shard/w2") {ranks=2} : f32[2,2048]
  %g2 = reshape(%a2) {shape=[64,64]} : f32[64,64]
  %a1 = all_gather(%"shard/w1") {ranks=2} : f32[2,2048]
  %g1 = reshape(%a1) {shape=[64,64]} : f32[64,64]
  %y1 = matmul(%x, %g1) : f32[64,64]
  %y2 = matmul(%y1, %g2) : f32[64,64]
  %y3 = matmul(%y2, %g3) : f32[64,64]
  return %y3 as "y"
})";

std::vector<std::string> GathersOf(std::string_view policy) {
  const auto graph = test::ParseOrDie(kLayers);
  const test::BareTarget target;
  PassOptions options = Sharded();
  options.buckets = ParseBucketPolicy("policy", policy);
  PassContext context(target, options);
  EXPECT_TRUE(BucketGradients(*graph, context));
  std::vector<std::string> gathers;
  for (const auto& node : graph->nodes()) {
    if (node->op_name() != "all_gather") break;
    gathers.emplace_back();
    for (const ir::Value* part : node->inputs()) {
      gathers.back() += part->name().substr(6);
    }
  }
  EXPECT_EQ(context.counters().at("parameter_buckets"),
            static_cast<int64_t>(gathers.size()));
  return gathers;
}

TEST(BucketGathers, ComeFirstInTheOrderOfNeed) {
  using ::testing::ElementsAre;
  EXPECT_THAT(GathersOf("cap:0.000001"), ElementsAre("w1", "w2", "w3"));
  EXPECT_THAT(GathersOf("one"), ElementsAre("w1w2w3"));
  // Buckets are filled from the last layer, whose gradients are ready first.
  EXPECT_THAT(GathersOf("cap:0.03"), ElementsAre("w1", "w2w3"));
}

}  // namespace
}  // namespace fusor::passes
