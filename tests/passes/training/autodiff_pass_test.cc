// Tests the pass: outputs, collectives, dropped nodes. autodiff_test.cc tests
// differentiation.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Tensor;
using ir::Value;
using ::testing::HasSubstr;

class AutodiffPassTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph) { return Autodiff(graph, context_); }

  void ExpectError(std::string_view text, std::string_view message) {
    const auto graph = test::ParseOrDie(text);
    try {
      Run(*graph);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGraph);
      EXPECT_THAT(error.what(), HasSubstr(std::string(message)));
    }
  }

  test::BareTarget target_;
  PassContext context_{target_, {}};
};

TEST_F(AutodiffPassTest, ReducesEachGradientAsSoonAsItIsReady) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %a = weight : f32[4]
    %b = bias : f32[4]
    %m = mul(%x, %a) : f32[4] @"first"
    %s = mul(%m, %b) : f32[4] @"second"
    %loss = reduce(%s) {dims=[0], kind="sum"} : f32[] @"loss"
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[4]
    %a = weight : f32[4]
    %b = bias : f32[4]
    %m = mul(%x, %a) : f32[4] @"first"
    %s = mul(%m, %b) : f32[4] @"second"
    %loss = reduce(%s) {dims=[0], kind="sum"} : f32[] @"loss"
    %one = constant() {dtype="f32", shape=[], value=[1.0]} : f32[] @"loss"
    %ds = broadcast(%one) {dims=[], shape=[4]} : f32[4] @"loss"
    %dm = mul(%ds, %b) : f32[4] @"second"
    %db = mul(%ds, %m) : f32[4] @"second"
    %rb = all_reduce(%db) : f32[4] @"second"
    %da = mul(%dm, %x) : f32[4] @"first"
    %ra = all_reduce(%da) : f32[4] @"first"
    return %loss as "loss", %ra as "grad/a", %rb as "grad/b"
  })",
                        *graph);
}

TEST_F(AutodiffPassTest, AddsUpGradientsWhereTheModelForks) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %a = weight : f32[4]
    %m = mul(%x, %a) : f32[4]
    %n = neg(%m) : f32[4]
    %e = exp(%m) : f32[4]
    %s = mul(%n, %e) : f32[4]
    %loss = reduce(%s) {dims=[0], kind="sum"} : f32[]
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  int sums = 0;
  for (const auto& node : graph->nodes()) {
    sums += node->op_name() == "add" ? 1 : 0;
  }
  EXPECT_EQ(sums, 1);
}

TEST_F(AutodiffPassTest, ConcatenatesGradientsOfSlicesThatDivideAValue) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = weight : f32[2,5]
    %y = slice(%a) {limit=[2,5], start=[0,2], stride=[1,1]} : f32[2,3]
    %x = slice(%a) {limit=[2,2], start=[0,0], stride=[1,1]} : f32[2,2]
    %ex = exp(%x) : f32[2,2]
    %ny = neg(%y) : f32[2,3]
    %sx = reduce(%ex) {dims=[0,1], kind="sum"} : f32[]
    %sy = reduce(%ny) {dims=[0,1], kind="sum"} : f32[]
    %loss = add(%sx, %sy) : f32[]
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %a = weight : f32[2,5]
    %y = slice(%a) {limit=[2,5], start=[0,2], stride=[1,1]} : f32[2,3]
    %x = slice(%a) {limit=[2,2], start=[0,0], stride=[1,1]} : f32[2,2]
    %ex = exp(%x) : f32[2,2]
    %ny = neg(%y) : f32[2,3]
    %sx = reduce(%ex) {dims=[0,1], kind="sum"} : f32[]
    %sy = reduce(%ny) {dims=[0,1], kind="sum"} : f32[]
    %loss = add(%sx, %sy) : f32[]
    %one = constant() {dtype="f32", shape=[], value=[1.0]} : f32[]
    %dny = broadcast(%one) {dims=[], shape=[2,3]} : f32[2,3]
    %dex = broadcast(%one) {dims=[], shape=[2,2]} : f32[2,2]
    %dy = neg(%dny) : f32[2,3]
    %dx = mul(%dex, %ex) : f32[2,2]
    %da = concat(%dx, %dy) {dim=1} : f32[2,5]
    %ra = all_reduce(%da) : f32[2,5]
    return %loss as "loss", %ra as "grad/a"
  })",
                        *graph);
}

// Overlapping slices, and slices that leave a gap.
TEST_F(AutodiffPassTest, AddsUpGradientsOfOtherSlices) {
  for (const int start : {1, 3}) {
    const std::string text = fmt::format(R"(graph g {{
      %a = weight : f32[6]
      %x = slice(%a) {{limit=[2], start=[0], stride=[1]}} : f32[2]
      %y = slice(%a) {{limit=[6], start=[{}], stride=[1]}} : f32[{}]
      %sx = reduce(%x) {{dims=[0], kind="sum"}} : f32[]
      %sy = reduce(%y) {{dims=[0], kind="sum"}} : f32[]
      %loss = add(%sx, %sy) : f32[]
      return %loss as "loss"
    }})",
                                         start, 6 - start);
    const auto graph = test::ParseOrDie(text);
    EXPECT_TRUE(Run(*graph));
    const ir::Node& reduced = *graph->outputs()[1].value->producer();
    EXPECT_EQ(reduced.input(0)->producer()->op_name(), "add") << start;
  }
}

TEST_F(AutodiffPassTest, DropsStopGradientAndObeysIt) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = weight : f32[]
    %c = stop_gradient(%a) : f32[]
    %loss = mul(%a, %c) : f32[]
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %a = weight : f32[]
    %loss = mul(%a, %a) : f32[]
    %one = constant() {dtype="f32", shape=[], value=[1.0]} : f32[]
    %da = mul(%one, %a) : f32[]
    %ra = all_reduce(%da) : f32[]
    return %loss as "loss", %ra as "grad/a"
  })",
                        *graph);
}

TEST_F(AutodiffPassTest, FollowsACustomGradientAndDropsIt) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = weight : f32[]
    %b = weight : f32[]
    %y = mul(%a, %b) : f32[]
    %dy = stop_gradient(%y) : f32[]
    %n = neg(%dy) : f32[]
    %da = exp(%n) : f32[]
    %c = custom_gradient(%y, %dy, %a, %da) : f32[]
    %loss = exp(%c) : f32[]
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %a = weight : f32[]
    %b = weight : f32[]
    %y = mul(%a, %b) : f32[]
    %loss = exp(%y) : f32[]
    %one = constant() {dtype="f32", shape=[], value=[1.0]} : f32[]
    %d = mul(%one, %loss) : f32[]
    %n = neg(%d) : f32[]
    %da = exp(%n) : f32[]
    %ra = all_reduce(%da) : f32[]
    return %loss as "loss", %ra as "grad/a"
  })",
                        *graph);
}

TEST_F(AutodiffPassTest, GivesNoGradientToWhatTheLossDoesNotDependOn) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %a = weight : f32[]
    %unused = weight : f32[3]
    %frozen = norm_scale : f32[]
    %state = statistic : f32[]
    %c = stop_gradient(%frozen) : f32[]
    %d = mul(%c, %state) : f32[]
    %loss = mul(%a, %d) : f32[]
    return %loss as "loss"
  })");
  EXPECT_TRUE(Run(*graph));
  ASSERT_EQ(graph->outputs().size(), 2u);
  EXPECT_EQ(graph->outputs()[1].name, "grad/a");
  EXPECT_EQ(context_.decisions().size(), 2u);
  for (const auto& node : graph->nodes()) {
    EXPECT_FALSE(graph->IsUnused(node->output())) << node->output()->name();
  }
}

TEST_F(AutodiffPassTest, SaysWhetherALossWithoutParametersChangedTheGraph) {
  constexpr char kText[] = R"(graph g {
    %x = data : f32[3]
    %unused = weight : f32[3]
    %loss = reduce(%x) {dims=[0], kind="sum"} : f32[]
    return %loss as "loss"
  })";
  const auto graph = test::ParseOrDie(kText);
  EXPECT_FALSE(Run(*graph));
  test::ExpectSameGraph(kText, *graph);
}

TEST_F(AutodiffPassTest, NamesWhatIsMissing) {
  ExpectError("graph net { %a = weight : f32[] return %a as \"y\" }",
              "graph net: no output named loss");
  ExpectError("graph net { %a = data : f32[] return %a as \"loss\" }",
              "graph net: no parameters to train");
}

// --- A small residual network with every kind of normalisation -------------

struct Network {
  ir::Graph graph;
  std::vector<Tensor> inputs;
};

Value* Parameter(Network& net, const std::string& name, InputRole role,
                 ir::Shape shape) {
  const ir::TensorType type{DType::kF64, std::move(shape), {}};
  const uint64_t seed = net.inputs.size() + 1;
  net.inputs.push_back(role == InputRole::kNormScale
                           ? test::RandomTensor(type, seed, 0.5, 1.5)
                           : test::RandomTensor(type, seed, -0.5, 0.5));
  return net.graph.AddInput(type, role, name);
}

Value* ConvNorm(Network& net, Builder& b, Value* x, const std::string& name,
                int64_t channels, int64_t kernel) {
  Value* w = Parameter(net, name + ".weight", InputRole::kWeight,
                       {channels, x->type().shape[1], kernel, kernel});
  Value* y =
      b.Conv2d(x, w, nullptr, {.pad_h = kernel / 2, .pad_w = kernel / 2});
  Value* gamma =
      Parameter(net, name + ".gamma", InputRole::kNormScale, {channels});
  Value* beta =
      Parameter(net, name + ".beta", InputRole::kNormShift, {channels});
  return b.BatchNormTrain(y, gamma, beta, 1e-5).y;
}

// Builds conv-bn-relu, a block with an identity shortcut and one with a
// projection.
void BuildNetwork(Network& net) {
  Builder b(net.graph);
  Value* x = Parameter(net, "images", InputRole::kData, {3, 2, 4, 4});
  x = b.Relu(ConvNorm(net, b, x, "stem", 3, 3));
  Value* branch = b.Relu(ConvNorm(net, b, x, "block1.conv1", 2, 1));
  x = b.Relu(b.Plus(ConvNorm(net, b, branch, "block1.conv2", 3, 3), x));
  Value* shortcut = ConvNorm(net, b, x, "block2.downsample", 4, 1);
  branch = b.Relu(ConvNorm(net, b, x, "block2.conv1", 2, 1));
  branch = ConvNorm(net, b, branch, "block2.conv2", 4, 3);
  x = b.Relu(b.Plus(branch, shortcut));
  Value* logits =
      b.Linear(b.GlobalAvgPool(x),
               Parameter(net, "fc.weight", InputRole::kWeight, {5, 4}),
               Parameter(net, "fc.bias", InputRole::kBias, {5}));
  Value* labels =
      b.Cast(Parameter(net, "labels", InputRole::kData, {3}), DType::kI32);
  Value* loss = b.ReduceMean(b.CrossEntropy(logits, labels, {}), {0});
  net.graph.AddOutput(loss, "loss");
  net.inputs.back().data = {0, 3, 2};
}

TEST_F(AutodiffPassTest, MatchesFiniteDifferencesThroughFusedNormalisations) {
  Network plain;
  BuildNetwork(plain);
  const auto graph = plain.graph.Clone();
  EXPECT_TRUE(FuseNormActivation(*graph, context_));
  EXPECT_EQ(context_.counters().at("bn_relu"), 3);
  EXPECT_EQ(context_.counters().at("bn_add_relu"), 2);
  EXPECT_EQ(context_.counters().at("dual_bn_add_relu"), 1);
  EXPECT_TRUE(Run(*graph));
  const auto results = Interpret(*graph, plain.inputs, ir::EvalMode::kExact);
  EXPECT_TRUE(test::AllClose(
      results[0], Interpret(plain.graph, plain.inputs, ir::EvalMode::kExact)[0],
      1e-12));

  int checked = 0;
  for (size_t i = 0; i < plain.inputs.size(); ++i) {
    const std::string& name = plain.graph.input(i)->name();
    if (!IsParameter(plain.graph.inputs()[i].role)) continue;
    SCOPED_TRACE(name);
    const int output = graph->FindOutput("grad/" + name);
    ASSERT_GE(output, 0);
    Tensor numeric = results[output];
    for (size_t j = 0; j < numeric.data.size(); ++j) {
      constexpr double kStep = 1e-5;
      double loss[2];
      for (const int sign : {-1, 1}) {
        std::vector<Tensor> inputs = plain.inputs;
        inputs[i].data[j] += sign * kStep;
        loss[(sign + 1) / 2] =
            Interpret(plain.graph, inputs, ir::EvalMode::kExact)[0].data[0];
      }
      numeric.data[j] = (loss[1] - loss[0]) / (2 * kStep);
    }
    EXPECT_TRUE(test::AllClose(results[output], numeric, 1e-6, 1e-8));
    ++checked;
  }
  EXPECT_EQ(checked, 6 * 3 + 2);
}

// Compares gradients with those of the graph without fused normalisations, up
// to rounding.
TEST_F(AutodiffPassTest, AgreesWithTheUnfusedNetwork) {
  Network net;
  BuildNetwork(net);
  const auto fused = net.graph.Clone();
  EXPECT_TRUE(FuseNormActivation(*fused, context_));
  EXPECT_TRUE(Run(*fused));
  EXPECT_TRUE(Run(net.graph));
  const auto a = Interpret(net.graph, net.inputs, ir::EvalMode::kExact);
  const auto b = Interpret(*fused, net.inputs, ir::EvalMode::kExact);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(test::AllClose(b[i], a[i], 1e-10, 1e-12))
        << net.graph.outputs()[i].name;
  }
}

}  // namespace
}  // namespace fusor::passes
