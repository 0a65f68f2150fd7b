#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

using ::testing::ElementsAre;

// Fuses a graph and returns a line per kernel: what it loads, computes without
// broadcasts, and stores.
std::vector<std::string> KernelsOf(const std::string& text,
                                   const PassOptions& options = {},
                                   const std::string& device = "cpu-avx512") {
  const auto graph = test::ParseOrDie(text);
  const test::BareTarget target(device);
  PassContext context(target, options);
  EXPECT_TRUE(Fuse(*graph, context));
  std::vector<std::string> kernels;
  for (const auto& node : graph->nodes()) {
    if (node->body() == nullptr) continue;
    std::string line;
    for (const ir::Value* input : node->inputs()) line += input->name() + " ";
    line += "->";
    for (const auto& inner : node->body()->nodes()) {
      if (inner->op_name() != "broadcast") {
        line += " " + std::string(inner->op_name());
      }
    }
    line += " ->";
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      line += " " + node->output(i)->name();
    }
    kernels.push_back(line);
  }
  return kernels;
}

// A layer without a library op of its own: `forward` computes y from h, and
// `backward` computes dh from the gradient dy.
std::string Layer(const std::string& forward, const std::string& backward) {
  return R"(graph layer {
      %x = data : f32[256,256]
      %w = weight : f32[256,256]
      %v = weight : f32[256,256]
      %h = matmul(%x, %w) : f32[256,256])" +
         forward + R"(
      %z = matmul(%y, %v) : f32[256,256]
      %dy = matmul(%z, %v) {transpose_b=true} : f32[256,256])" +
         backward + R"(
      %dx = matmul(%dh, %w) {transpose_b=true} : f32[256,256]
      return %dx as "dx"
    })";
}

TEST(Rematerialize, AKernelRecomputesWhatOnlyItReads) {
  EXPECT_THAT(KernelsOf(Layer(R"(
      %e = exp(%h) : f32[256,256]
      %y = mul(%h, %e) : f32[256,256])",
                              R"(
      %d = mul(%dy, %e) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])")),
              ElementsAre("h -> exp mul -> y", "h dy -> exp mul mul -> dh"));
}

TEST(Rematerialize, ExpensiveValuesAreStored) {
  EXPECT_THAT(
      KernelsOf(Layer(R"(
      %p = pow(%h, %h) : f32[256,256]
      %q = pow(%p, %h) : f32[256,256]
      %y = mul(%h, %q) : f32[256,256])",
                      R"(
      %d = mul(%dy, %q) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])")),
      ElementsAre("h -> pow pow mul -> q y", "dy q h -> mul mul -> dh"));
}

TEST(Rematerialize, AChainIsRecomputedFromItsBeginning) {
  EXPECT_THAT(
      KernelsOf(Layer(R"(
      %n = neg(%h) : f32[256,256]
      %e = exp(%n) : f32[256,256]
      %y = mul(%h, %e) : f32[256,256])",
                      R"(
      %d = mul(%dy, %e) : f32[256,256]
      %dh = mul(%d, %n) : f32[256,256])")),
      ElementsAre("h -> neg exp mul -> y", "h dy -> neg exp mul mul -> dh"));
}

TEST(Rematerialize, WhatALibraryOpReadsIsLoadedUnlessThatSavesALoad) {
  // The backward kernel would load h instead of y.
  EXPECT_THAT(KernelsOf(Layer(R"(
      %y = neg(%h) : f32[256,256])",
                              R"(
      %dh = mul(%dy, %y) : f32[256,256])")),
              ElementsAre("h -> neg -> y", "dy y -> mul -> dh"));
  // It loads h anyway.
  EXPECT_THAT(KernelsOf(Layer(R"(
      %y = neg(%h) : f32[256,256])",
                              R"(
      %d = mul(%dy, %y) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])")),
              ElementsAre("h -> neg -> y", "h dy -> neg mul mul -> dh"));
}

TEST(Rematerialize, ResultsOfAReductionAreStored) {
  EXPECT_THAT(KernelsOf(Layer(R"(
      %peak = reduce(%h) {dims=[1], kind="max"} : f32[256]
      %peaks = broadcast(%peak) {dims=[0], shape=[256,256]} : f32[256,256]
      %low = sub(%h, %peaks) : f32[256,256]
      %y = mul(%low, %low) : f32[256,256])",
                              R"(
      %d = mul(%dy, %low) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])")),
              ElementsAre("h -> reduce sub mul -> peak y",
                          "peak h dy -> sub mul mul -> dh"));
}

TEST(Rematerialize, AValueIsStoredIfOneOfItsReadersNeedsIt) {
  EXPECT_THAT(KernelsOf(Layer(R"(
      %e = exp(%h) : f32[256,256]
      %y = mul(%h, %e) : f32[256,256])",
                              R"(
      %de = matmul(%e, %v) : f32[256,256]
      %d = mul(%dy, %e) : f32[256,256]
      %dh = mul(%d, %de) : f32[256,256])")),
              ElementsAre("h -> exp mul -> e y", "dy e de -> mul mul -> dh"));
}

TEST(Rematerialize, CopiesFollowTheCopiesThatTheyRead) {
  // n is recomputed first, with m. k then reads the copy of m, and a is visited
  // after that.
  EXPECT_THAT(KernelsOf(Layer(R"(
      %a = exp(%h) : f32[256,256]
      %m = neg(%h) : f32[256,256]
      %k = mul(%m, %m) : f32[256,256]
      %n = sub(%m, %h) : f32[256,256]
      %p = mul(%k, %n) : f32[256,256]
      %y = mul(%a, %p) : f32[256,256])",
                              R"(
      %c = mul(%dy, %k) : f32[256,256]
      %d = mul(%c, %n) : f32[256,256]
      %e = mul(%d, %a) : f32[256,256]
      %dh = mul(%e, %h) : f32[256,256])")),
              ElementsAre("h -> exp neg mul sub mul mul -> y",
                          "h dy -> neg mul mul sub mul exp mul mul -> dh"));
}

// q is read at [j,i], so n would be, too. p reads n at [i,j]: it is stored.
TEST(Rematerialize, NoCopyIsReadAtTwoIndices) {
  EXPECT_THAT(KernelsOf(Layer(R"(
      %n = neg(%h) : f32[256,256]
      %p = abs(%n) : f32[256,256]
      %q = mul(%n, %n) : f32[256,256]
      %y = mul(%p, %q) : f32[256,256])",
                              R"(
      %t = transpose(%q) {permutation=[1,0]} : f32[256,256]
      %c = mul(%dy, %p) : f32[256,256]
      %dh = mul(%c, %t) : f32[256,256])")),
              ElementsAre("h -> neg abs mul mul -> p y",
                          "dy p h -> mul neg mul transpose mul -> dh"));
}

TEST(Rematerialize, SmallValuesAreStored) {
  EXPECT_THAT(KernelsOf(R"(graph small {
      %x = data : f32[8,8]
      %h = matmul(%x, %x) : f32[8,8]
      %e = exp(%h) : f32[8,8]
      %y = mul(%h, %e) : f32[8,8]
      %dy = matmul(%y, %x) : f32[8,8]
      %d = mul(%dy, %e) : f32[8,8]
      %dh = mul(%d, %h) : f32[8,8]
      return %dh as "dh"
    })"),
              ElementsAre("h -> exp mul -> e y", "dy e h -> mul mul -> dh"));
}

// A GPU's threads have no registers to spare for small values.
TEST(Rematerialize, OnAGpuOnlyLargeValuesAreRecomputed) {
  const auto layer = [](int64_t n) {
    return fmt::format(R"(graph layer {{
      %x = data : f32[{0},256]
      %w = weight : f32[256,256]
      %h = matmul(%x, %w) : f32[{0},256]
      %e = exp(%h) : f32[{0},256]
      %y = mul(%h, %e) : f32[{0},256]
      %dy = matmul(%y, %w) {{transpose_b=true}} : f32[{0},256]
      %d = mul(%dy, %e) : f32[{0},256]
      %dh = mul(%d, %h) : f32[{0},256]
      return %dh as "dh"
    }})",
                       n);
  };
  const auto stored =
      ElementsAre("h -> exp mul -> e y", "dy e h -> mul mul -> dh");
  const auto recomputed =
      ElementsAre("h -> exp mul -> y", "h dy -> exp mul mul -> dh");
  EXPECT_THAT(KernelsOf(layer(256), {}, "nvidia-h200"), recomputed);
  EXPECT_THAT(KernelsOf(layer(128), {}, "nvidia-h200"), stored);
  EXPECT_THAT(KernelsOf(layer(128)), recomputed);
}

TEST(Rematerialize, IsARewriteForBisection) {
  const std::string text = Layer(R"(
      %e = exp(%h) : f32[256,256]
      %y = mul(%h, %e) : f32[256,256])",
                                 R"(
      %d = mul(%dy, %e) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])");
  // Both kernels are merged before e is recomputed.
  EXPECT_THAT(KernelsOf(text, {.fuel = {{"fuse", 2}}}),
              ElementsAre("h -> exp mul -> e y", "dy e h -> mul mul -> dh"));
  EXPECT_THAT(KernelsOf(text, {.fuel = {{"fuse", 3}}}),
              ElementsAre("h -> exp mul -> y", "h dy -> exp mul mul -> dh"));
}

TEST(Rematerialize, NeedsFusion) {
  EXPECT_THAT(KernelsOf(Layer(R"(
      %e = exp(%h) : f32[256,256]
      %y = mul(%h, %e) : f32[256,256])",
                              R"(
      %d = mul(%dy, %e) : f32[256,256]
      %dh = mul(%d, %h) : f32[256,256])"),
                        {.fusion = false}),
              ElementsAre("h -> exp -> e", "h e -> mul -> y",
                          "dy e -> mul -> d", "d h -> mul -> dh"));
}

}  // namespace
}  // namespace fusor::passes
