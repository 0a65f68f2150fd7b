#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/library_fusion.h"
#include "ir/target/conv_problem.h"
#include "ir/verifier.h"
#include "passes/patterns/conv_rewrites.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Value;

// Fuses sums of results only with convolutions of stride 1.
class UnstridedStatistics final : public test::ChannelsLastCompiler {
 public:
  using test::ChannelsLastCompiler::ChannelsLastCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (ir::IsLibraryFusion(node) &&
        ir::LibraryOp(node).attrs().Ints("stride")[0] > 1) {
      return {};
    }
    return test::ChannelsLastCompiler::Candidates(node);
  }
};

constexpr char kStem[] = R"(graph g {{
      %images = data : u8[2,8,8,3]
      %w = weight : f32[4,3,3,3]
      %gamma = norm_scale : f32[4]
      %beta = norm_shift : f32[4]
      %dy = data : f16[2,4,4,4]
      %m = constant() {{dtype="f32", shape=[3], value=[1.0,2.0,3.0]}} : f32[3]
      %s = constant() {{dtype="f32", shape=[3], value=[0.5,0.25,2.0]}} : f32[3]
      %wide = cast(%images) {{dtype="f32"}} : f32[2,8,8,3] @"images"
      %ms = broadcast(%m) {{dims=[3], shape=[2,8,8,3]}} : f32[2,8,8,3]
      %d = sub(%wide, %ms) : f32[2,8,8,3] @"images"
      %ss = broadcast(%s) {{dims=[3], shape=[2,8,8,3]}} : f32[2,8,8,3]
      %n = mul(%d, %ss) : f32[2,8,8,3] @"images"
      %h = cast(%n) {{dtype="f16"}} : f16[2,8,8,3] @"images"
      %x = transpose(%h) {{permutation=[0,3,1,2]}} : f16[2,3,8,8] @"images"
      %wh = cast(%w) {{dtype="f16"}} : f16[4,3,3,3] @"conv1"
      %y = conv2d(%x, %wh) {{pad=[1,1], stride=[2,2]}} : f16[2,4,4,4] @"conv1"
      %z, %mean, %var = batch_norm_train(%y, %gamma, %beta)
                      : f16[2,4,4,4], f32[4], f32[4] @"bn1"
      %dw = conv2d_grad_weight(%x, %dy)
            {{pad=[1,1], stride=[2,2], weight_shape=[4,3,3,3]}}
          : f16[4,3,3,3] @"conv1"
      return %z as "z", %dw as "dw"{}
    }})";

std::string Stem(const char* outputs = "") {
  return fmt::format(kStem, outputs);
}

class SpaceToDepthTest : public testing::Test {
 protected:
  static PassOptions Lowering(NormLowering lowering) {
    PassOptions options;
    options.norm_lowering = lowering;
    return options;
  }

  static PassOptions Choice(const char* choice) {
    PassOptions options = Lowering(NormLowering::kStatistics);
    const auto graph = test::ParseOrDie(Stem());
    for (const auto& node : graph->nodes()) {
      if (node->op_name() == "conv2d") {
        options.choices.candidates[{ir::LibraryProblem(*node), DType::kF16}] =
            choice;
      }
    }
    options.choices.origin.file = "c.txt";
    return options;
  }

  static void ExpectKept(const ir::TargetQueries& target,
                         const PassOptions& options, const std::string& reason,
                         const std::string& text = Stem()) {
    const auto graph = test::ParseOrDie(text);
    PassContext context(target, options);
    EXPECT_FALSE(SpaceToDepth(*graph, context));
    test::ExpectSameGraph(text, *graph);
    ASSERT_EQ(context.decisions().size(), 1);
    EXPECT_FALSE(context.decisions()[0].accepted);
    EXPECT_EQ(context.decisions()[0].reason, reason);
  }

  const UnstridedStatistics target_{"nvidia-h200"};
};

TEST_F(SpaceToDepthTest, TakesBlocksOfPixelsAsChannels) {
  const auto graph = test::ParseOrDie(Stem());
  PassContext context(target_, Lowering(NormLowering::kStatistics));
  EXPECT_TRUE(SpaceToDepth(*graph, context));
  ir::Verify(*graph);
  Simplify(*graph, context);
  test::ExpectSameGraph(R"(graph g {
      %images = data : u8[2,8,8,3]
      %w = weight : f32[4,3,3,3]
      %gamma = norm_scale : f32[4]
      %beta = norm_shift : f32[4]
      %dy = data : f16[2,4,4,4]
      %wh = cast(%w) {dtype="f16"} : f16[4,3,3,3] @"conv1"
      %m = constant() {dtype="f32", shape=[6], value=[1.0,2.0,3.0,1.0,2.0,3.0]}
         : f32[6] @"images"
      %s = constant()
           {dtype="f32", shape=[6], value=[0.5,0.25,2.0,0.5,0.25,2.0]}
         : f32[6] @"images"
      %x = space_to_depth(%images, %m, %s) {result_dtype="f16"}
         : f16[2,16,5,5] @"images"
      %w0 = pad(%wh) {high=[0,0,0,0], interior=[0,0,0,0], low=[0,0,1,1]}
          : f16[4,3,4,4] @"conv1"
      %w1 = reshape(%w0) {shape=[4,3,2,2,2,2]} : f16[4,3,2,2,2,2] @"conv1"
      %w2 = transpose(%w1) {permutation=[0,2,4,3,5,1]}
          : f16[4,2,2,2,2,3] @"conv1"
      %w3 = reshape(%w2) {shape=[4,2,2,2,6]} : f16[4,2,2,2,6] @"conv1"
      %w4 = pad(%w3) {high=[0,0,0,0,2], interior=[0,0,0,0,0], low=[0,0,0,0,0]}
          : f16[4,2,2,2,8] @"conv1"
      %w5 = reshape(%w4) {shape=[4,2,2,16]} : f16[4,2,2,16] @"conv1"
      %w6 = transpose(%w5) {permutation=[0,3,1,2]} : f16[4,16,2,2] @"conv1"
      %y = conv2d(%x, %w6) : f16[2,4,4,4] @"conv1"
      %z, %mean, %var = batch_norm_train(%y, %gamma, %beta)
                      : f16[2,4,4,4], f32[4], f32[4] @"bn1"
      %g = conv2d_grad_weight(%x, %dy) {weight_shape=[4,16,2,2]}
         : f16[4,16,2,2] @"conv1"
      %g0 = transpose(%g) {permutation=[0,2,3,1]} : f16[4,2,2,16] @"conv1"
      %g1 = reshape(%g0) {shape=[4,2,2,2,8]} : f16[4,2,2,2,8] @"conv1"
      %g2 = slice(%g1)
            {limit=[4,2,2,2,6], start=[0,0,0,0,0], stride=[1,1,1,1,1]}
          : f16[4,2,2,2,6] @"conv1"
      %g3 = reshape(%g2) {shape=[4,2,2,2,2,3]} : f16[4,2,2,2,2,3] @"conv1"
      %g4 = transpose(%g3) {permutation=[0,5,1,3,2,4]}
          : f16[4,3,2,2,2,2] @"conv1"
      %g5 = reshape(%g4) {shape=[4,3,4,4]} : f16[4,3,4,4] @"conv1"
      %dw = slice(%g5) {limit=[4,3,4,4], start=[0,0,1,1], stride=[1,1,1,1]}
          : f16[4,3,3,3] @"conv1"
      return %z as "z", %dw as "dw"
    })",
                        *graph);
  EXPECT_EQ(context.counters().at("space_to_depth"), 1);
  ASSERT_EQ(context.decisions().size(), 1);
  EXPECT_EQ(context.decisions()[0].reason,
            "the library computes statistics only of this form");
}

TEST_F(SpaceToDepthTest, DecidesByStatisticsThatTheLibraryHas) {
  ExpectKept(target_, Lowering(NormLowering::kKernels),
             "no other form is estimated faster");
  PassOptions unfused = Lowering(NormLowering::kStatistics);
  unfused.fusion = false;
  ExpectKept(target_, unfused, "no other form is estimated faster");
  ExpectKept(test::ChannelsLastCompiler("nvidia-h200"),
             Lowering(NormLowering::kStatistics),
             "no other form is estimated faster");
  const UnstridedStatistics cpu("cpu-avx512");
  PassContext context(cpu, Lowering(NormLowering::kStatistics));
  const auto graph = test::ParseOrDie(Stem());
  EXPECT_FALSE(SpaceToDepth(*graph, context));
  EXPECT_TRUE(context.decisions().empty());
}

TEST_F(SpaceToDepthTest, ChoicesGoBeforeTheRule) {
  ExpectKept(target_, Choice("eng1_k2=3"), "by autotune results c.txt");
  const test::ChannelsLastCompiler compiler("nvidia-h200");
  PassOptions options = Choice("space_to_depth");
  options.norm_lowering = NormLowering::kKernels;
  PassContext context(compiler, options);
  const auto graph = test::ParseOrDie(Stem());
  EXPECT_TRUE(SpaceToDepth(*graph, context));
  EXPECT_EQ(context.decisions()[0].reason, "by autotune results c.txt");
  EXPECT_EQ(context.counters().at("chosen_forms"), 1);
}

TEST_F(SpaceToDepthTest, KeepsImagesThatOthersRead) {
  ExpectKept(target_, Lowering(NormLowering::kStatistics), "%x has other uses",
             [] {
               std::string text = Stem(", %r as \"r\"");
               text.insert(text.find("      return"),
                           "      %r = relu(%x) : f16[2,3,8,8]\n");
               return text;
             }());
}

TEST_F(SpaceToDepthTest, KeepsImagesThatTwoConvolutionsRead) {
  std::string text = Stem(", %y2 as \"y2\"");
  text.insert(text.find("      return"),
              "      %y2 = conv2d(%x, %wh) {pad=[1,1], stride=[2,2]}"
              " : f16[2,4,4,4]\n");
  const auto graph = test::ParseOrDie(text);
  PassContext context(target_, Lowering(NormLowering::kStatistics));
  EXPECT_FALSE(SpaceToDepth(*graph, context));
  test::ExpectSameGraph(text, *graph);
  ASSERT_EQ(context.decisions().size(), 2);
  EXPECT_EQ(context.decisions()[0].reason, "%x has other uses");
}

TEST_F(SpaceToDepthTest, SurveysWhatCanBeMade) {
  const auto graph = test::ParseOrDie(Stem());
  PassContext context(target_, Lowering(NormLowering::kKernels));
  const std::vector<ConvRewrite> made = SurveySpaceToDepth(*graph, context);
  ir::Verify(*graph);
  ASSERT_EQ(made.size(), 1);
  EXPECT_EQ(made[0].place, "y");
  EXPECT_EQ(made[0].dtype, DType::kF16);
  EXPECT_EQ(made[0].choice, "space_to_depth");
  // Images have 1600 bytes instead of 768. Weights of 216 and 512 bytes are
  // counted twice.
  EXPECT_EQ(made[0].saved_bytes, -(832 + 2 * 728));
  const std::string before =
      " x=2x3x8x8 w=4x3x3x3 stride=2,2 pad=1,1 dilation=1,1 groups=1";
  const std::string after =
      " x=2x16x5x5 w=4x16x2x2 stride=1,1 pad=0,0 dilation=1,1 groups=1";
  ASSERT_EQ(made[0].parts.size(), 2);
  EXPECT_EQ(made[0].parts[0].before, "conv2d" + before);
  EXPECT_EQ(made[0].parts[0].after, "conv2d" + after);
  EXPECT_EQ(made[0].parts[1].before, "conv2d_grad_weight" + before);
  EXPECT_EQ(made[0].parts[1].after, "conv2d_grad_weight" + after);
  EXPECT_TRUE(context.decisions().empty());

  const auto chosen = test::ParseOrDie(Stem());
  PassContext choice(target_, Choice("space_to_depth"));
  EXPECT_TRUE(SpaceToDepth(*chosen, choice));
  EXPECT_TRUE(ir::SameGraph(*graph, *chosen));

  const UnstridedStatistics cpu("cpu-avx512");
  const PassContext other(cpu, Lowering(NormLowering::kStatistics));
  EXPECT_TRUE(SurveySpaceToDepth(*test::ParseOrDie(Stem()), other).empty());
}

// A library whose weight gradients copy images of three channels to a workspace
// padded with zero channels.
class PaddingLibrary final : public test::ChannelsLastCompiler {
 public:
  using test::ChannelsLastCompiler::ChannelsLastCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    auto candidates = test::ChannelsLastCompiler::Candidates(node);
    const auto conv = ir::ConvolutionOf(node);
    if (conv.has_value() && conv->kind == ir::ConvKind::kGradWeight &&
        conv->x.shape[1] % 8 != 0) {
      for (ir::LibraryCandidate& candidate : candidates) {
        candidate.workspace_bytes = conv->x.num_bytes() / conv->x.shape[1] * 8;
      }
    }
    return candidates;
  }
};

// Adds a convolution of large normalised images of three channels, and its
// weight gradient if `training`.
std::unique_ptr<ir::Graph> LargeStem(int64_t batch, int64_t stride,
                                     int64_t kernel, bool training) {
  auto graph = std::make_unique<ir::Graph>("stem");
  ir::Builder b(*graph);
  Value* bytes = graph->AddInput({DType::kU8, {batch, 224, 224, 3}, {}},
                                 ir::InputRole::kData, "images");
  Value* w = graph->AddInput({DType::kF16, {64, 3, kernel, kernel}, {}},
                             ir::InputRole::kWeight, "w");
  Value* mean = b.Constant(DType::kF32, {3}, {1, 2, 3});
  Value* scale = b.Constant(DType::kF32, {3}, {0.5, 0.25, 0.125});
  Value* x = b.Transpose(
      b.Cast(b.Times(b.Minus(b.Cast(bytes, DType::kF32), mean), scale),
             DType::kF16),
      {0, 3, 1, 2});
  const int64_t pad = kernel / 2;
  Value* y = b.Conv2d(
      x, w, nullptr,
      {.stride_h = stride, .stride_w = stride, .pad_h = pad, .pad_w = pad});
  graph->AddOutput(y, "y");
  if (!training) return graph;
  Value* dy = graph->AddInput(y->type(), ir::InputRole::kData, "dy");
  ir::Attrs attrs{{"stride", std::vector<int64_t>{stride, stride}},
                  {"pad", std::vector<int64_t>{pad, pad}},
                  {"weight_shape", w->type().shape}};
  graph->AddOutput(b.Add("conv2d_grad_weight", {x, dy}, attrs)->output(), "dw");
  return graph;
}

// Returns the shape of the images that the convolutions read after the pass.
ir::Shape FormOf(std::unique_ptr<ir::Graph> graph,
                 const PassOptions& options = {}) {
  const PaddingLibrary target("nvidia-h200");
  PassContext context(target, options);
  SpaceToDepth(*graph, context);
  ir::Verify(*graph);
  for (const auto& node : graph->nodes()) {
    if (node->op_name() == "conv2d") return node->input(0)->type().shape;
  }
  return {};
}

TEST_F(SpaceToDepthTest, TakesTheFormThatIsEstimatedFastest) {
  // Stride 2: pixel blocks.
  EXPECT_EQ(FormOf(LargeStem(64, 2, 7, true)), (ir::Shape{64, 16, 113, 113}));
  // Training uses 8 channels, so that the library need not copy images.
  // Inference uses 4, enough for asynchronous copies.
  EXPECT_EQ(FormOf(LargeStem(64, 1, 3, true)), (ir::Shape{64, 8, 224, 224}));
  EXPECT_EQ(FormOf(LargeStem(64, 1, 3, false)), (ir::Shape{64, 4, 224, 224}));
  // For one image, rearranging the weights costs more than it saves.
  EXPECT_EQ(FormOf(LargeStem(1, 1, 3, false)), (ir::Shape{1, 3, 224, 224}));
  PassOptions unfused;
  unfused.fusion = false;
  EXPECT_EQ(FormOf(LargeStem(64, 2, 7, true), unfused),
            (ir::Shape{64, 16, 113, 113}));
}

TEST_F(SpaceToDepthTest, SurveysPaddedChannels) {
  const auto graph = LargeStem(64, 1, 3, true);
  const PaddingLibrary target("nvidia-h200");
  const PassContext context(target, {});
  const auto made = SurveySpaceToDepth(*graph, context);
  ir::Verify(*graph);
  ASSERT_EQ(made.size(), 1);
  EXPECT_EQ(made[0].choice, "pad_channels");
  ASSERT_EQ(made[0].parts.size(), 2);
  EXPECT_EQ(made[0].parts[0].after,
            "conv2d x=64x8x224x224 w=64x8x3x3 stride=1,1 pad=1,1 "
            "dilation=1,1 groups=1");
}

// Every geometry that the pass supports, without rounding.
TEST_F(SpaceToDepthTest, ComputesTheSame) {
  int taken = 0;
  int padded = 0;
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t pad = 0; pad <= kernel / 2; ++pad) {
      ir::Graph graph("g");
      ir::Builder b(graph);
      Value* bytes = graph.AddInput({DType::kU8, {2, 12, 10, 3}, {}},
                                    ir::InputRole::kData, "images");
      Value* w = graph.AddInput({DType::kF32, {4, 3, kernel, kernel}, {}},
                                ir::InputRole::kWeight, "w");
      Value* mean = b.Constant(DType::kF32, {3}, {1, 2, 3});
      Value* scale = b.Constant(DType::kF32, {3}, {0.5, 0.25, 0.125});
      Value* x =
          b.Transpose(b.Times(b.Minus(b.Cast(bytes, DType::kF32), mean), scale),
                      {0, 3, 1, 2});
      Value* y =
          b.Conv2d(x, w, nullptr,
                   {.stride_h = 2, .stride_w = 2, .pad_h = pad, .pad_w = pad});
      graph.AddOutput(y, "y");
      Value* dy = graph.AddInput(y->type(), ir::InputRole::kData, "dy");
      ir::Attrs attrs{{"stride", std::vector<int64_t>{2, 2}},
                      {"pad", std::vector<int64_t>{pad, pad}},
                      {"weight_shape", w->type().shape}};
      graph.AddOutput(b.Add("conv2d_grad_weight", {x, dy}, attrs)->output(),
                      "dw");
      const auto inputs = test::RandomInputs(graph, 1);
      const auto before = ir::Interpret(graph, inputs, ir::EvalMode::kExact);
      const PassContext context(target_, {});
      const auto made = SurveySpaceToDepth(graph, context);
      ASSERT_EQ(made.size(), 1);
      ++(made[0].choice == "space_to_depth" ? taken : padded);
      ir::Verify(graph);
      const auto after = ir::Interpret(graph, inputs, ir::EvalMode::kExact);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(test::AllClose(after[i], before[i], 1e-12, 1e-12))
            << "window " << kernel << ", pad " << pad << ", result " << i;
      }
    }
  }
  EXPECT_EQ(taken, 4);  // 3x3, 5x5 and 7x7 padded by 1, 7x7 by 3
  EXPECT_EQ(padded, 15);
}

}  // namespace
}  // namespace fusor::passes
