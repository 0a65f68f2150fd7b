#include <gtest/gtest.h>

#include "ir/graph.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

PassOptions Ranks(std::string_view policy) {
  PassOptions options;
  options.world_size = 2;
  options.buckets = ParseBucketPolicy("policy", policy);
  return options;
}

// The backward pass of two layers. The second layer's weight gradient comes
// after the first layer's.
constexpr std::string_view kStep = R"(graph g {
  %x = data : f32[8,4]
  %w1 = weight : f32[4,4]
  %w2 = weight : f32[4,4]
  %y = matmul(%x, %w1) : f32[8,4]
  %dy = matmul(%y, %w2) : f32[8,4]
  %dw1 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
  %dw2 = matmul(%y, %dy) {transpose_a=true} : f32[4,4]
  %s1 = all_reduce(%dw1) : f32[4,4] @"one"
  %new1 = sub(%w1, %s1) : f32[4,4]
  %s2 = all_reduce(%dw2) : f32[4,4] @"two"
  %new2 = sub(%w2, %s2) : f32[4,4]
  %loss = reduce(%dy) {dims=[0,1], kind="sum"} : f32[]
  return %loss as "loss", %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
})";

TEST(BucketGradients, JoinsSumsWhereTheLastGradientIsReady) {
  const auto graph = test::ParseOrDie(kStep);
  EXPECT_TRUE(test::RunPass(BucketGradients, *graph, Ranks("one")));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[8,4]
    %w1 = weight : f32[4,4]
    %w2 = weight : f32[4,4]
    %y = matmul(%x, %w1) : f32[8,4]
    %dy = matmul(%y, %w2) : f32[8,4]
    %dw1 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
    %dw2 = matmul(%y, %dy) {transpose_a=true} : f32[4,4]
    %s1, %s2 = all_reduce(%dw1, %dw2) : f32[4,4], f32[4,4] @"one"
    %loss = reduce(%dy) {dims=[0,1], kind="sum"} : f32[]
    %new1 = sub(%w1, %s1) : f32[4,4]
    %new2 = sub(%w2, %s2) : f32[4,4]
    return %loss as "loss", %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
  })",
                        *graph);
}

TEST(BucketGradients, StartsSumsAsEarlyAsItCan) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[8,4]
    %w1 = weight : f32[4,4]
    %w2 = weight : f32[4,4]
    %dy = matmul(%x, %w2) : f32[8,4]
    %dx = matmul(%dy, %w1) : f32[8,4]
    %dw1 = matmul(%x, %dx) {transpose_a=true} : f32[4,4]
    %dw2 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
    %s1 = all_reduce(%dw1) : f32[4,4] @"one"
    %s2 = all_reduce(%dw2) : f32[4,4] @"two"
    %new1 = sub(%w1, %s1) : f32[4,4]
    %new2 = sub(%w2, %s2) : f32[4,4]
    return %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
  })");
  EXPECT_TRUE(test::RunPass(BucketGradients, *graph, Ranks("cap:0.000001")));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[8,4]
    %w1 = weight : f32[4,4]
    %w2 = weight : f32[4,4]
    %dy = matmul(%x, %w2) : f32[8,4]
    %dw2 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
    %s2 = all_reduce(%dw2) : f32[4,4] @"two"
    %dx = matmul(%dy, %w1) : f32[8,4]
    %dw1 = matmul(%x, %dx) {transpose_a=true} : f32[4,4]
    %s1 = all_reduce(%dw1) : f32[4,4] @"one"
    %new1 = sub(%w1, %s1) : f32[4,4]
    %new2 = sub(%w2, %s2) : f32[4,4]
    return %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
  })",
                        *graph);
}

// A backward pass through a synchronised normalisation. The weight gradient of
// the layer above is computed while its sums are all-reduced, and the rest
// waits for them.
TEST(BucketGradients, OverlapsStatisticsWithWeightGradients) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[8,4]
    %w1 = weight : f32[4,4]
    %w2 = weight : f32[4,4]
    %dy = matmul(%x, %w2) : f32[8,4]
    %dw2 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
    %s2 = all_reduce(%dw2) : f32[4,4] @"two"
    %new2 = sub(%w2, %s2) : f32[4,4]
    %dn = matmul(%dy, %w2) {transpose_b=true} : f32[8,4]
    %sum = reduce(%dn) {dims=[0], kind="sum"} : f32[4]
    %all = all_gather(%sum) {ranks=2} : f32[2,4]
    %sums = reduce(%all) {dims=[0], kind="sum"} : f32[4]
    %wide = broadcast(%sums) {dims=[1], shape=[8,4]} : f32[8,4]
    %dz = sub(%dn, %wide) : f32[8,4]
    %dw1 = matmul(%x, %dz) {transpose_a=true} : f32[4,4]
    %s1 = all_reduce(%dw1) : f32[4,4] @"one"
    %new1 = sub(%w1, %s1) : f32[4,4]
    return %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
  })");
  EXPECT_TRUE(test::RunPass(BucketGradients, *graph, Ranks("cap:0.000001")));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[8,4]
    %w1 = weight : f32[4,4]
    %w2 = weight : f32[4,4]
    %dy = matmul(%x, %w2) : f32[8,4]
    %dn = matmul(%dy, %w2) {transpose_b=true} : f32[8,4]
    %sum = reduce(%dn) {dims=[0], kind="sum"} : f32[4]
    %all = all_gather(%sum) {ranks=2} : f32[2,4]
    %dw2 = matmul(%x, %dy) {transpose_a=true} : f32[4,4]
    %s2 = all_reduce(%dw2) : f32[4,4] @"two"
    %sums = reduce(%all) {dims=[0], kind="sum"} : f32[4]
    %wide = broadcast(%sums) {dims=[1], shape=[8,4]} : f32[8,4]
    %dz = sub(%dn, %wide) : f32[8,4]
    %dw1 = matmul(%x, %dz) {transpose_a=true} : f32[4,4]
    %s1 = all_reduce(%dw1) : f32[4,4] @"one"
    %new2 = sub(%w2, %s2) : f32[4,4]
    %new1 = sub(%w1, %s1) : f32[4,4]
    return %new1 as "w1" -> %w1, %new2 as "w2" -> %w2
  })",
                        *graph);
}

// Two gradients are estimated to be ready 73.4 ms apart. One bucket saves 74.2
// ms, so it would end less than 1 ms earlier than two. If the computation takes
// twice as long as estimated, it would end 66 ms later.
TEST(BucketGradients, PrefersBucketsThatAreGoodAtOtherPaces) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[2048,2048]
    %a = matmul(%x, %x) : f32[2048,2048]
    %sa = all_reduce(%a) : f32[2048,2048] @"a"
    %b = matmul(%x, %x) {transpose_a=true} : f32[2048,2048]
    %sb = all_reduce(%b) : f32[2048,2048] @"b"
    return %sa as "a", %sb as "b"
  })");
  PassOptions options = Ranks("exact");
  options.buckets.slack_seconds = 0;
  options.collective_cost = {{{74.2e-3, 65.8e-3 / 16777216}}};
  const std::vector<ReadyGradient> gradients{{73.418e-3, 16777216},
                                             {146.837e-3, 16777216}};
  EXPECT_EQ(
      PartitionGradients(gradients, options.collective_cost, options.buckets)
          .size(),
      1U);
  const test::BareTarget target;
  PassContext context(target, options);
  BucketGradients(*graph, context);
  EXPECT_EQ(context.counters().at("gradient_buckets"), 2);
  ASSERT_EQ(context.decisions().size(), 2U);
  EXPECT_EQ(context.decisions()[0].reason,
            "1 gradient, 16777216 bytes, ready at 73.418 ms, all-reduced at "
            "213.418 ms");
  EXPECT_EQ(context.decisions()[1].reason,
            "1 gradient, 16777216 bytes, ready at 146.836 ms, all-reduced at "
            "353.418 ms");
}

TEST(BucketGradients, KeepsDTypesApart) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = data : f32[4]
    %b = data : f16[4]
    %c = data : f32[4]
    %sa = all_reduce(%a) : f32[4] @"a"
    %sb = all_reduce(%b) : f16[4] @"b"
    %sc = all_reduce(%c) : f32[4] @"c"
    return %sa as "a", %sb as "b", %sc as "c"
  })");
  const test::BareTarget target;
  PassContext context(target, Ranks("one"));
  EXPECT_TRUE(BucketGradients(*graph, context));
  test::ExpectSameGraph(R"(graph g {
    %a = data : f32[4]
    %b = data : f16[4]
    %c = data : f32[4]
    %sb = all_reduce(%b) : f16[4] @"b"
    %sa, %sc = all_reduce(%a, %c) : f32[4], f32[4] @"a"
    return %sa as "a", %sb as "b", %sc as "c"
  })",
                        *graph);
  EXPECT_EQ(context.counters().at("gradient_buckets"), 2);
  ASSERT_EQ(context.decisions().size(), 1U);
  EXPECT_EQ(
      context.decisions()[0].reason,
      "3 gradients, 40 bytes, ready at 0.000 ms, all-reduced at 1.000 ms");
}

// %a, %c and %e have few bytes compared with %b, %d and %f. The first two join
// the second to last of the three buckets, %e joins its own.
TEST(BucketGradients, TheFewThatDifferGoWithALaterBucket) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = data : f16[4]
    %b = data : f32[32]
    %c = data : f16[4]
    %d = data : f32[32]
    %e = data : f16[4]
    %f = data : f32[32]
    %sa = all_reduce(%a) : f16[4] @"a"
    %sb = all_reduce(%b) : f32[32] @"b"
    %sc = all_reduce(%c) : f16[4] @"c"
    %sd = all_reduce(%d) : f32[32] @"d"
    %se = all_reduce(%e) : f16[4] @"e"
    %sf = all_reduce(%f) : f32[32] @"f"
    return %sa as "a", %sb as "b", %sc as "c", %sd as "d", %se as "e", %sf as "f"
  })");
  const test::BareTarget target;
  PassContext context(target, Ranks("cap:0.000136"));  // 136 bytes
  EXPECT_TRUE(BucketGradients(*graph, context));
  test::ExpectSameGraph(R"(graph g {
    %a = data : f16[4]
    %b = data : f32[32]
    %c = data : f16[4]
    %d = data : f32[32]
    %e = data : f16[4]
    %f = data : f32[32]
    %sb = all_reduce(%b) : f32[32] @"b"
    %sa, %sc = all_reduce(%a, %c) : f16[4], f16[4] @"a"
    %sd = all_reduce(%d) : f32[32] @"d"
    %se = all_reduce(%e) : f16[4] @"e"
    %sf = all_reduce(%f) : f32[32] @"f"
    return %sa as "a", %sb as "b", %sc as "c", %sd as "d", %se as "e", %sf as "f"
  })",
                        *graph);
  EXPECT_EQ(context.counters().at("gradient_buckets"), 5);
  EXPECT_EQ(context.decisions().size(), 3U);
}

TEST(BucketGradients, LeavesOneRankAlone) {
  const auto graph = test::ParseOrDie(kStep);
  PassOptions options = Ranks("one");
  options.world_size = 1;
  EXPECT_FALSE(test::RunPass(BucketGradients, *graph, options));
}

// The only all_gather is already first.
TEST(BucketGradients, SaysThatItChangedNothing) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[8,4]
    %w = weight : f32[4,4]
    %"shard/w" = optimizer_state {init="constant", shard_of="w", value=0.0} : f32[8]
    %all = all_gather(%"shard/w") {ranks=2} : f32[2,8]
    %n = reshape(%all) {shape=[4,4]} : f32[4,4]
    %y = matmul(%x, %n) : f32[8,4]
    return %y as "y", %n as "w" -> %w
  })");
  const auto before = graph->Clone();
  EXPECT_FALSE(test::RunPass(BucketGradients, *graph, Ranks("one")));
  EXPECT_TRUE(ir::SameGraph(*before, *graph));
}

// Two buckets with three updates each, in two groups. There is one launch per
// group and bucket. Buckets are stored in the order of the launches.
TEST(BucketGradients, UpdatesAreJoinedBucketByBucket) {
  std::string inputs, sums, nodes, outputs;
  for (const std::string p : {"a", "b", "c", "d", "e", "f"}) {
    // The second update of each bucket is in another group.
    const std::string rate = p == "b" || p == "e" ? "0.5" : "0.25";
    const std::string v = "%" + p;
    inputs += v + " = weight : f32[16] " + v + "x = data : f32[16] ";
    nodes += v + "n = fusion(" + v + ", " + v +
             "s) {kind=\"loop\"} : f32[16] { %p = data : f32[16] %g = data : "
             "f32[16] "
             "%r = constant() {dtype=\"f32\", shape=[16], value=[" +
             rate +
             "]} : f32[16] %m = mul(%r, %g) : f32[16] %q = sub(%p, %m) : "
             "f32[16] return %q as \"q\" } ";
    outputs += (outputs.empty() ? "" : ", ") + v + "n as \"" + p + "\" -> " + v;
  }
  sums =
      "%as, %bs, %cs = all_reduce(%ax, %bx, %cx) : f32[16], f32[16], f32[16] "
      "%ds, %es, %fs = all_reduce(%dx, %ex, %fx) : f32[16], f32[16], f32[16] ";
  const auto graph = test::ParseOrDie("graph g { " + inputs + sums + nodes +
                                      "return " + outputs + " }");
  EXPECT_TRUE(test::RunPass(FuseUpdates, *graph, Ranks("one")));
  std::vector<std::string> names;
  for (const auto& node : graph->nodes()) {
    std::string text(node->op_name());
    for (const ir::Value* input : node->inputs()) text += " " + input->name();
    names.push_back(text);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "all_reduce ax cx bx", "all_reduce dx fx ex", "fusion b bs",
                "fusion e es", "fusion a c as cs", "fusion d f ds fs"}));
}

}  // namespace
}  // namespace fusor::passes
