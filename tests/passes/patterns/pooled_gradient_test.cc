#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

// --- Masks -------------------------------------------------------------------

constexpr char kPooled[] = R"(graph g {{
      %y = data : f32[1,2,4,4]
      %dp = data : f32[1,2,2,2]
      %p, %index = max_pool(%y) {{stride=[2,2], window=[2,2]}}
                 : f32[1,2,2,2], u8[1,2,2,2] @"features.2"
      %dy = max_pool_grad(%dp, %index)
            {{input_shape=[1,2,4,4], stride=[2,2], window=[2,2]}}
          : f32[1,2,4,4] @"features.2"
      %zero = constant() {{dtype="f32", shape=[1,2,4,4], value=[{0}]}}
            : f32[1,2,4,4] @"features.1"
      %on = compare({1}, %zero) {{direction="{2}"}} : bool[1,2,4,4] @"features.1"
      %dx = select(%on, {3}, %zero) : f32[1,2,4,4] @"features.1"
      return %dx as "dx", %p as "p"{4}
    }})";

std::string Pooled(const char* zero = "0.0", const char* compared = "%y",
                   const char* direction = "gt", const char* selected = "%dy",
                   const char* outputs = "") {
  return fmt::format(kPooled, zero, compared, direction, selected, outputs);
}

class MaskPooledGradientTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph) { return MaskPooledGradient(graph, context_); }

  void ExpectKept(const std::string& text) {
    const auto graph = test::ParseOrDie(text);
    EXPECT_FALSE(Run(*graph));
    test::ExpectSameGraph(text, *graph);
  }

  test::BareTarget target_;
  PassContext context_{target_, {}};
};

TEST_F(MaskPooledGradientTest, MasksBeforeTheGradientIsSpread) {
  const auto graph = test::ParseOrDie(Pooled());
  EXPECT_TRUE(Run(*graph));
  Simplify(*graph, context_);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f32[1,2,4,4]
      %dp = data : f32[1,2,2,2]
      %p, %index = max_pool(%y) {stride=[2,2], window=[2,2]}
                 : f32[1,2,2,2], u8[1,2,2,2] @"features.2"
      %zero = constant() {dtype="f32", shape=[1,2,2,2], value=[0.0]}
            : f32[1,2,2,2] @"features.1"
      %on = compare(%p, %zero) {direction="gt"} : bool[1,2,2,2] @"features.1"
      %masked = select(%on, %dp, %zero) : f32[1,2,2,2] @"features.1"
      %dx = max_pool_grad(%masked, %index)
            {input_shape=[1,2,4,4], stride=[2,2], window=[2,2]}
          : f32[1,2,4,4] @"features.1"
      return %dx as "dx", %p as "p"
    })",
                        *graph, test::Names::kIgnore);
}

TEST_F(MaskPooledGradientTest, KeepsWhatIsNoReluGradient) {
  ExpectKept(Pooled("1.0"));
  ExpectKept(Pooled("0.0", "%y", "ge"));
  ExpectKept(Pooled("0.0", "%dy"));
  ExpectKept(Pooled("0.0", "%y", "gt", "%y"));
}

TEST_F(MaskPooledGradientTest, KeepsAGradientThatIsReadUnmasked) {
  ExpectKept(Pooled("0.0", "%y", "gt", "%dy", ", %dy as \"dy\""));
}

TEST_F(MaskPooledGradientTest, StopsWithItsFuel) {
  PassOptions options;
  options.fuel["mask_pooled_gradient"] = 0;
  PassContext context(target_, options);
  const auto graph = test::ParseOrDie(Pooled());
  EXPECT_FALSE(MaskPooledGradient(*graph, context));
  test::ExpectSameGraph(Pooled(), *graph);
}

// Overlapping windows, padding, ties, and windows without a positive element.
TEST_F(MaskPooledGradientTest, KeepsEveryBitOfTheGradient) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ir::Graph graph("g");
    ir::Builder b(graph);
    ir::Value* x = graph.AddInput({ir::DType::kF32, {2, 3, 9, 9}, {}},
                                  ir::InputRole::kData, "x");
    ir::Value* y = b.Relu(x);
    ir::Value* p = b.MaxPool2d(y, {3, 3, 2, 2, 1, 1});
    ir::Value* dp = graph.AddInput(p->type(), ir::InputRole::kData, "dp");
    ir::Attrs attrs = p->producer()->attrs();
    attrs.Set("input_shape", y->type().shape);
    ir::Value* dy =
        b.Add("max_pool_grad", {dp, p->producer()->output(1)}, attrs)->output();
    const ir::Shape& shape = y->type().shape;
    ir::Value* zero = b.Constant(ir::DType::kF32, shape, {0});
    ir::Value* dx = b.Select(b.Compare("gt", y, zero), dy, zero);
    graph.AddOutput(dx, "dx");
    auto inputs = test::RandomInputs(graph, seed);
    for (double& v : inputs[0].data) v = std::floor(2 * v) / 2;
    const auto before = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
    ASSERT_TRUE(Run(graph));
    const auto after = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
    EXPECT_EQ(before[0].data, after[0].data) << seed;
  }
}

// --- Sums --------------------------------------------------------------------

// Sums of the gradient of a normalisation, followed by a ReLU and a max-pool
// with overlapping windows. Placeholders: {0} the factor of the summed
// gradient, {1} the tensor that the mask is computed from, {2} further nodes,
// {3} further outputs.
constexpr char kPooledNorm[] = R"(graph g {{
      %y = data : f32[2,8,8,8]{{acdb}}
      %dp = data : f32[2,8,4,4]{{acdb}}
      %scale = data : f32[8]
      %a = broadcast(%scale) {{dims=[1], shape=[2,8,8,8]}} : f32[2,8,8,8]{{acdb}}
      %n = mul(%y, %a) : f32[2,8,8,8]{{acdb}} @"bn1"
      %z = relu(%n) : f32[2,8,8,8]{{acdb}} @"bn1"
      %p, %i = max_pool(%z) {{pad=[1,1], stride=[2,2], window=[3,3]}}
             : f32[2,8,4,4]{{acdb}}, u8[2,8,4,4]{{acdb}} @"maxpool"
      %dz = max_pool_grad(%dp, %i)
            {{input_shape=[2,8,8,8], pad=[1,1], stride=[2,2], window=[3,3]}}
          : f32[2,8,8,8]{{acdb}} @"maxpool"
      %zeros = constant() {{dtype="f32", shape=[2,8,8,8], value=[0.0]}}
             : f32[2,8,8,8]{{acdb}}{2}
      %on = compare({1}, %zeros) {{direction="gt"}} : bool[2,8,8,8]{{acdb}} @"bn1"
      %g = select(%on, %dz, %zeros) : f32[2,8,8,8]{{acdb}} @"bn1"
      %gy = mul(%g, {0}) : f32[2,8,8,8]{{acdb}} @"bn1"
      %dbeta = reduce(%g) {{dims=[0,2,3], kind="sum"}} : f32[8] @"bn1"
      %dgamma = reduce(%gy) {{dims=[0,2,3], kind="sum"}} : f32[8] @"bn1"
      return %p as "p", %g as "g", %dgamma as "dgamma", %dbeta as "dbeta"{3}
    }})";

std::string Norm(const char* factor = "%y", const char* masked = "%n",
                 const char* more = "", const char* outputs = "") {
  return fmt::format(kPooledNorm, factor, masked, more, outputs);
}

class SumPooledGradientTest : public testing::Test {
 protected:
  void ExpectKept(const std::string& text, const std::string& reason) {
    const auto graph = test::ParseOrDie(text);
    PassContext context(target_, {});
    EXPECT_FALSE(SumPooledGradient(*graph, context));
    test::ExpectSameGraph(text, *graph);
    if (reason.empty()) {
      EXPECT_TRUE(context.decisions().empty());
      return;
    }
    ASSERT_EQ(context.decisions().size(), 1);
    EXPECT_FALSE(context.decisions()[0].accepted);
    EXPECT_EQ(context.decisions()[0].reason, reason);
  }

  test::ChannelsLastCompiler target_{"nvidia-h200"};
};

TEST_F(SumPooledGradientTest, SumsOverThePooledSizeWithWhatIsGathered) {
  const auto graph = test::ParseOrDie(Norm());
  PassContext context(target_, {});
  EXPECT_TRUE(SumPooledGradient(*graph, context));
  ir::Verify(*graph);
  Simplify(*graph, context);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f32[2,8,8,8]{acdb}
      %dp = data : f32[2,8,4,4]{acdb}
      %scale = data : f32[8]
      %a = broadcast(%scale) {dims=[1], shape=[2,8,8,8]} : f32[2,8,8,8]{acdb}
      %n = mul(%y, %a) : f32[2,8,8,8]{acdb} @"bn1"
      %z = relu(%n) : f32[2,8,8,8]{acdb} @"bn1"
      %p, %i = max_pool(%z) {pad=[1,1], stride=[2,2], window=[3,3]}
             : f32[2,8,4,4]{acdb}, u8[2,8,4,4]{acdb} @"maxpool"
      %ym = max_pool_gather(%y, %i) {pad=[1,1], stride=[2,2], window=[3,3]}
          : f32[2,8,4,4]{acdb} @"maxpool"
      %dz = max_pool_grad(%dp, %i)
            {input_shape=[2,8,8,8], pad=[1,1], stride=[2,2], window=[3,3]}
          : f32[2,8,8,8]{acdb} @"maxpool"
      %zeros = constant() {dtype="f32", shape=[2,8,8,8], value=[0.0]}
             : f32[2,8,8,8]{acdb}
      %on = compare(%n, %zeros) {direction="gt"} : bool[2,8,8,8]{acdb} @"bn1"
      %g = select(%on, %dz, %zeros) : f32[2,8,8,8]{acdb} @"bn1"
      %am = broadcast(%scale) {dims=[1], shape=[2,8,4,4]} : f32[2,8,4,4]{acdb}
      %nm = mul(%ym, %am) : f32[2,8,4,4]{acdb} @"bn1"
      %zerosm = constant() {dtype="f32", shape=[2,8,4,4], value=[0.0]}
              : f32[2,8,4,4]{acdb}
      %onm = compare(%nm, %zerosm) {direction="gt"} : bool[2,8,4,4]{acdb} @"bn1"
      %gm = select(%onm, %dp, %zerosm) : f32[2,8,4,4]{acdb} @"bn1"
      %dbeta = reduce(%gm) {dims=[0,2,3], kind="sum"} : f32[8] @"bn1"
      %gym = mul(%gm, %ym) : f32[2,8,4,4]{acdb} @"bn1"
      %dgamma = reduce(%gym) {dims=[0,2,3], kind="sum"} : f32[8] @"bn1"
      return %p as "p", %g as "g", %dgamma as "dgamma", %dbeta as "dbeta"
    })",
                        *graph);
  EXPECT_EQ(context.counters().at("pooled_sums"), 2);
  ASSERT_EQ(context.decisions().size(), 1);
  EXPECT_TRUE(context.decisions()[0].accepted);
}

// A sum that depends on the others needs another pass over the image.
TEST_F(SumPooledGradientTest, LeavesSumsOfWhatTheyLeadTo) {
  std::string text = Norm("%y", "%n", "", ", %dbias as \"dbias\"");
  text.insert(text.find("      return"), R"(
      %k = broadcast(%dbeta) {dims=[1], shape=[2,8,8,8]} : f32[2,8,8,8]{acdb}
      %dy = sub(%g, %k) : f32[2,8,8,8]{acdb} @"bn1"
      %dbias = reduce(%dy) {dims=[0,2,3], kind="sum"} : f32[8] @"conv1"
)");
  const auto graph = test::ParseOrDie(text);
  PassContext context(target_, {});
  EXPECT_TRUE(SumPooledGradient(*graph, context));
  ir::Verify(*graph);
  EXPECT_EQ(context.counters().at("pooled_sums"), 2);
  const ir::Node* dbias =
      graph->outputs()[graph->FindOutput("dbias")].value->producer();
  EXPECT_EQ(dbias->input(0)->type().shape, (ir::Shape{2, 8, 8, 8}));
}

// The maxima of the pooled tensor are already available.
TEST_F(SumPooledGradientTest, GathersNothingOfThePooledTensor) {
  const auto graph = test::ParseOrDie(Norm("%z", "%z"));
  PassContext context(target_, {});
  EXPECT_TRUE(SumPooledGradient(*graph, context));
  for (const auto& node : graph->nodes()) {
    EXPECT_NE(node->op_name(), "max_pool_gather");
  }
}

TEST_F(SumPooledGradientTest, KeepsWhatIsNotLinearOrNotThereYet) {
  ExpectKept(Norm("%g"), "%dgamma is not linear in it");
  ExpectKept(Norm("%late", "%n", R"(
      %w = data : f32[8,8,1,1]{acdb}
      %late = conv2d(%z, %w) : f32[2,8,8,8]{acdb})"),
             "%late cannot be gathered by the max-pool");
}

// The gradient of a bias, with a library's max-pool and with a generated one.
TEST_F(SumPooledGradientTest, SumsTheGradientAloneOverWhatIsSpread) {
  static constexpr char kSums[] = R"(graph g {{
      %y = data : f32[1,2,4,4]
      %dp = data : f32[1,2,2,2]
      %p, %index = max_pool(%y) {{stride=[2,2], window=[2,2]}}
                 : f32[1,2,2,2], u8[1,2,2,2]
      %dy = max_pool_grad(%dp, %index)
            {{input_shape=[1,2,4,4], stride=[2,2], window=[2,2]}}
          : f32[1,2,4,4]
      %db = reduce({0}) {{dims=[0,2,3], kind="sum"}} : f32[2]
      return %p as "p", %dy as "dy", %db as "db"
    }})";
  const test::FakeCompiler library("nvidia-h200");
  for (const ir::TargetQueries* target :
       {static_cast<const ir::TargetQueries*>(&library),
        static_cast<const ir::TargetQueries*>(&target_)}) {
    PassContext context(*target, {});
    const auto graph = test::ParseOrDie(fmt::format(kSums, "%dy"));
    EXPECT_TRUE(SumPooledGradient(*graph, context));
    test::ExpectSameGraph(fmt::format(kSums, "%dp"), *graph);
    EXPECT_FALSE(SumPooledGradient(*graph, context));
    EXPECT_EQ(context.counters().at("pooled_sums"), 1);
  }
}

// Other reductions read the image in any case.
TEST_F(SumPooledGradientTest, KeepsSumsBesideOthers) {
  for (const char* other : {R"({dims=[0,2], kind="sum"} : f32[8,8])",
                            R"({dims=[0,2,3], kind="max"} : f32[8])"}) {
    std::string text = Norm("%y", "%n", "", ", %other as \"other\"");
    text.insert(text.find("      return"),
                std::string("      %other = reduce(%dz) ") + other + "\n");
    ExpectKept(text, "%other is not linear in it");
  }
}

TEST_F(SumPooledGradientTest, KeepsSumsOfEagerRounding) {
  PassOptions options;
  options.eager_rounding = true;
  PassContext eager(target_, options);
  const auto graph = test::ParseOrDie(Norm());
  EXPECT_FALSE(SumPooledGradient(*graph, eager));
  test::ExpectSameGraph(Norm(), *graph);
}

// Libraries have no max-pool that also gathers.
TEST_F(SumPooledGradientTest, KeepsSumsThatLibrariesWouldHaveToGatherFor) {
  const test::FakeCompiler library("nvidia-h200");
  PassContext context(library, {});
  const auto graph = test::ParseOrDie(Norm());
  EXPECT_FALSE(SumPooledGradient(*graph, context));
  test::ExpectSameGraph(Norm(), *graph);
  ASSERT_EQ(context.decisions().size(), 1);
  EXPECT_EQ(context.decisions()[0].reason,
            "%y cannot be gathered by the max-pool");
}

TEST_F(SumPooledGradientTest, StopsWithItsFuel) {
  PassOptions options;
  options.fuel["sum_pooled_gradient"] = 0;
  PassContext context(target_, options);
  const auto graph = test::ParseOrDie(Norm());
  EXPECT_FALSE(SumPooledGradient(*graph, context));
  test::ExpectSameGraph(Norm(), *graph);
}

// With ties and overlapping windows. The sums are equal without rounding.
TEST_F(SumPooledGradientTest, SumsTheSame) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto graph = test::ParseOrDie(Norm());
    auto inputs = test::RandomInputs(*graph, seed);
    for (double& v : inputs[0].data) v = std::floor(2 * v) / 2;
    const auto before = ir::Interpret(*graph, inputs, ir::EvalMode::kExact);
    PassContext context(target_, {});
    ASSERT_TRUE(SumPooledGradient(*graph, context));
    const auto after = ir::Interpret(*graph, inputs, ir::EvalMode::kExact);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(test::AllClose(after[i], before[i], 1e-12, 1e-12)) << i;
    }
  }
}

}  // namespace
}  // namespace fusor::passes
