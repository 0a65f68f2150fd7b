#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

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

// Windows that overlap, padding, ties, and windows without a positive element.
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

}  // namespace
}  // namespace fusor::passes
