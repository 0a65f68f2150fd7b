// Tests AccumulateGradients and CompressGradients.

#include <gtest/gtest.h>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/run_pass.h"

namespace fusor::passes {
namespace {

constexpr char kGradients[] = R"(graph g {
  %w = weight : f32[4]
  %b = bias : f32[2]
  %s = statistic : f32[2]
  %x = data : f32[4]
  %y = data : f32[2]
  %loss = data : f32[]
  %next = add(%s, %y) : f32[2] @"bn"
  %dw = all_reduce(%x) : f32[4] @"one"
  %db = all_reduce(%y) : f32[2] @"two"
  return %loss as "loss", %next as "s" -> %s, %dw as "grad/w", %db as "grad/b"
})";

TEST(AccumulateGradients, DoesNothingUnlessAsked) {
  PassOptions options;
  const auto graph = test::ParseOrDie(kGradients);
  EXPECT_FALSE(test::RunPass(AccumulateGradients, *graph, options));
  EXPECT_FALSE(test::RunPass(CompressGradients, *graph, options));
  test::ExpectSameGraph(kGradients, *graph);
}

TEST(AccumulateGradients, AddsWithoutSendingAnything) {
  PassOptions options;
  options.micro_batches = MicroBatches::kAdd;
  const auto graph = test::ParseOrDie(kGradients);
  EXPECT_TRUE(test::RunPass(AccumulateGradients, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %w = weight : f32[4]
    %b = bias : f32[2]
    %s = statistic : f32[2]
    %x = data : f32[4]
    %y = data : f32[2]
    %loss = data : f32[]
    %n = accumulator {init="constant", value=0.0} : i32[]
    %sw = accumulator {group=0, init="constant", value=0.0} : f32[4]
    %sb = accumulator {group=1, init="constant", value=0.0} : f32[2]
    %0 = constant() {dtype="i32", shape=[], value=[0.0]} : i32[] @"micro_batches"
    %first = compare(%n, %0) {direction="eq"} : bool[] @"micro_batches"
    %next = add(%s, %y) : f32[2] @"bn"
    %fw = broadcast(%first) {dims=[], shape=[4]} : bool[4] @"one"
    %zw = constant() {dtype="f32", shape=[4], value=[0.0]} : f32[4] @"one"
    %ew = select(%fw, %zw, %sw) : f32[4] @"one"
    %nw = add(%x, %ew) : f32[4] @"one"
    %fb = broadcast(%first) {dims=[], shape=[2]} : bool[2] @"two"
    %zb = constant() {dtype="f32", shape=[2], value=[0.0]} : f32[2] @"two"
    %eb = select(%fb, %zb, %sb) : f32[2] @"two"
    %nb = add(%y, %eb) : f32[2] @"two"
    %1 = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"micro_batches"
    %m = add(%n, %1) : i32[] @"micro_batches"
    return %loss as "loss", %next as "s" -> %s, %nw as "accumulated/w" -> %sw,
           %nb as "accumulated/b" -> %sb, %m as "accumulated/batches" -> %n
  })",
                        *graph);
}

TEST(AccumulateGradients, FinishesWithTheSumThatGoesToTheOtherRanks) {
  PassOptions options;
  options.micro_batches = MicroBatches::kFinish;
  const auto graph = test::ParseOrDie(R"(graph g {
    %w = weight : f32[4]
    %x = data : f32[4]
    %dw = all_reduce(%x) : f32[4] @"one"
    return %dw as "grad/w"
  })");
  EXPECT_TRUE(test::RunPass(AccumulateGradients, *graph, options));
  EXPECT_TRUE(test::RunPass(ScaleGradients, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %w = weight : f32[4]
    %x = data : f32[4]
    %n = accumulator {init="constant", value=0.0} : i32[]
    %sw = accumulator {group=0, init="constant", value=0.0} : f32[4]
    %0 = constant() {dtype="i32", shape=[], value=[0.0]} : i32[] @"micro_batches"
    %first = compare(%n, %0) {direction="eq"} : bool[] @"micro_batches"
    %fw = broadcast(%first) {dims=[], shape=[4]} : bool[4] @"one"
    %zw = constant() {dtype="f32", shape=[4], value=[0.0]} : f32[4] @"one"
    %ew = select(%fw, %zw, %sw) : f32[4] @"one"
    %nw = add(%x, %ew) : f32[4] @"one"
    %dw = all_reduce(%nw) : f32[4] @"one"
    %none = constant() {dtype="i32", shape=[], value=[0.0]} : i32[] @"micro_batches"
    %1 = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"loss_scale"
    %m = add(%n, %1) : i32[] @"loss_scale"
    %k = cast(%m) {dtype="f32"} : f32[] @"loss_scale"
    %one = constant() {dtype="f32", shape=[], value=[1.0]} : f32[] @"loss_scale"
    %f = div(%one, %k) : f32[] @"loss_scale"
    %spread = broadcast(%f) {dims=[], shape=[4]} : f32[4] @"one"
    %mean = mul(%dw, %spread) : f32[4] @"one"
    return %mean as "grad/w", %nw as "accumulated/w" -> %sw,
           %none as "accumulated/batches" -> %n
  })",
                        *graph);
}

// The running statistics continue from the last micro-batch in a copy. Only the
// finishing program commits them.
TEST(AccumulateGradients, HoldsStatisticsBackUnderADynamicLossScale) {
  PassOptions options;
  options.loss_scale.dynamic = true;
  for (const MicroBatches kind : {MicroBatches::kAdd, MicroBatches::kFinish}) {
    const bool adds = kind == MicroBatches::kAdd;
    options.micro_batches = kind;
    const auto graph = test::ParseOrDie(kGradients);
    EXPECT_TRUE(test::RunPass(AccumulateGradients, *graph, options));
    const ir::Value* held = graph->FindInput("accumulated/s");
    ASSERT_NE(held, nullptr);
    const ir::Node* next = graph->outputs()[1].value->producer();
    const ir::Node* present = next->input(0)->producer();
    ASSERT_EQ(present->op_name(), "select");
    EXPECT_EQ(present->input(1), graph->FindInput("s"));
    EXPECT_EQ(present->input(2), held);
    EXPECT_EQ(graph->outputs()[1].alias,
              (adds ? held : graph->FindInput("s"))->index());
    EXPECT_EQ(graph->outputs()[1].name, adds ? "accumulated/s" : "s");
  }
}

TEST(AccumulateGradients, SendsIn16BitAllButNormalisations) {
  PassOptions options;
  options.precision = {.dtype = ir::DType::kF16, .narrow_gradients = true};
  const auto graph = test::ParseOrDie(R"(graph g {
    %w = weight : f32[4]
    %n = norm_scale : f32[2]
    %x = data : f32[4]
    %y = data : f32[2]
    %dw = all_reduce(%x) : f32[4] @"one"
    %dn = all_reduce(%y) : f32[2] @"two"
    return %dw as "grad/w", %dn as "grad/n"
  })");
  EXPECT_TRUE(test::RunPass(CompressGradients, *graph, options));
  constexpr char kNarrow[] = R"(graph g {
    %w = weight : f32[4]
    %n = norm_scale : f32[2]
    %x = data : f32[4]
    %y = data : f32[2]
    %h = cast(%x) {dtype="f16"} : f16[4] @"one"
    %dw = all_reduce(%h) : f16[4] @"one"
    %dn = all_reduce(%y) : f32[2] @"two"
    return %dw as "grad/w", %dn as "grad/n"
  })";
  test::ExpectSameGraph(kNarrow, *graph);
  EXPECT_FALSE(test::RunPass(CompressGradients, *graph, options));
  test::ExpectSameGraph(kNarrow, *graph);
}

// The communication dtype may differ from the model's dtype.
TEST(AccumulateGradients, SendsInTheCommunicationDtype) {
  constexpr char kStep[] = R"(graph g {
    %w = weight : f32[4]
    %x = data : f32[4]
    %dw = all_reduce(%x) : f32[4] @"one"
    return %dw as "grad/w"
  })";
  PassOptions options;
  options.world_size = 2;
  options.precision.wire = ir::DType::kBF16;
  auto graph = test::ParseOrDie(kStep);
  EXPECT_TRUE(test::RunPass(CompressGradients, *graph, options));
  test::ExpectSameGraph(R"(graph g {
    %w = weight : f32[4]
    %x = data : f32[4]
    %h = cast(%x) {dtype="bf16"} : bf16[4] @"one"
    %dw = all_reduce(%h) : bf16[4] @"one"
    return %dw as "grad/w"
  })",
                        *graph);
  // A single rank does not communicate.
  options.world_size = 1;
  graph = test::ParseOrDie(kStep);
  EXPECT_FALSE(test::RunPass(CompressGradients, *graph, options));
  // The default is the dtype of mixed precision.
  options.precision = {.dtype = ir::DType::kBF16};
  EXPECT_FALSE(test::RunPass(CompressGradients, *graph, options));
  options.world_size = 2;
  auto sent = test::ParseOrDie(kStep);
  EXPECT_TRUE(test::RunPass(CompressGradients, *sent, options));
  EXPECT_EQ(sent->outputs()[0].value->type().dtype, ir::DType::kBF16);
  options.precision = {.dtype = ir::DType::kF16,
                       .wire = ir::DType::kF32,
                       .narrow_gradients = true};
  EXPECT_FALSE(test::RunPass(CompressGradients, *graph, options));
  options.precision.wire = ir::DType::kF64;
  EXPECT_THROW(test::RunPass(CompressGradients, *graph, options), Error);
}

}  // namespace
}  // namespace fusor::passes
