#include "tools/inspect/bisect/draw_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ir/support/error.h"
#include "tests/testing/graph_text.h"

namespace fusor::inspect {
namespace {

constexpr char kInputs[] = R"(graph inputs {
  %images = data : u8[1000]
  %labels = data : i32[1000]
  %mask = data : bool[1000]
  %x = data : f32[1000]
  %w = weight {init="normal", std=0.5} : f16[1000]
  %var = statistic {init="constant", value=1.0} : f32[1000]
  %lr = hyper_parameter : f32[]
  return %x
})";

class DrawInputsTest : public ::testing::Test {
 protected:
  // Draws the input of that name.
  std::vector<double> Draw(const std::string& name, uint64_t seed = 1) const {
    return DrawInput(graph_->inputs()[graph_->FindInput(name)->index()], seed)
        .data;
  }

  static double Variance(const std::vector<double>& values) {
    double sum = 0, squares = 0;
    for (const double x : values) sum += x, squares += x * x;
    const auto n = static_cast<double>(values.size());
    return squares / n - sum / n * (sum / n);
  }

  void ExpectWithin(const std::string& name, double low, double high) const {
    const auto values = Draw(name);
    const auto [min, max] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*min, low) << name;
    EXPECT_LE(*max, high) << name;
  }

  const std::unique_ptr<ir::Graph> graph_ = test::ParseOrDie(kInputs);
};

TEST_F(DrawInputsTest, GivesEachInputValuesThatItMayHave) {
  ExpectWithin("images", 0, 255);
  ExpectWithin("labels", 0, 3);
  ExpectWithin("mask", 0, 1);
  ExpectWithin("var", 1, 1.1);
  ExpectWithin("lr", 0.05, 0.15);
  for (const char* name : {"images", "labels", "mask"}) {
    for (const double x : Draw(name)) EXPECT_EQ(x, std::floor(x)) << name;
  }
  EXPECT_NEAR(Variance(Draw("x")), 1, 0.1);
  EXPECT_NEAR(Variance(Draw("w")), 0.25, 0.03);
  for (const double x : Draw("w"))
    EXPECT_EQ(x, ir::RoundTo(ir::DType::kF16, x));
}

TEST_F(DrawInputsTest, DependsOnlyOnSeedAndName) {
  EXPECT_EQ(Draw("x"), Draw("x"));
  EXPECT_NE(Draw("x"), Draw("x", 2));
  const auto other = test::ParseOrDie(
      "graph other {\n  %more = data : f32[3]\n  %x = data : f32[1000]\n"
      "  return %x\n}");
  EXPECT_EQ(DrawInputs(*other, 1)[1].data, Draw("x"));
}

TEST(DrawPositions, AreInsideTheImage) {
  const auto graph = test::ParseOrDie(R"(graph pool {
  %dy = data : f32[2,3,4,4]
  %at = data : u8[2,3,4,4]
  %dx = max_pool_grad(%dy, %at) {input_shape=[2,3,8,8], pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,3,8,8]
  return %dx
})");
  const std::vector<ir::Tensor> inputs = DrawInputs(*graph, 1);
  EXPECT_EQ(inputs[1].type, graph->input(1)->type());
  const std::set<double> found(inputs[1].data.begin(), inputs[1].data.end());
  EXPECT_EQ(found.size(), 9u);  // every position in the window
  EXPECT_NO_THROW(ir::Interpret(*graph, inputs, ir::EvalMode::kTyped));
  EXPECT_FALSE(DrawPositions(*graph->input(0), 1));

  std::vector<ir::Tensor> outside = inputs;
  outside[1].data[0] = 0;  // the first position is in the padding
  const auto gather = test::ParseOrDie(R"(graph gather {
  %x = data : f32[2,3,8,8]
  %at = data : u8[2,3,4,4]
  %y = max_pool_gather(%x, %at) {pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,3,4,4]
  return %y
})");
  EXPECT_NO_THROW(
      ir::Interpret(*gather, DrawInputs(*gather, 1), ir::EvalMode::kTyped));
  const auto fused = test::ParseOrDie(R"(graph fused {
  %x = data : f32[2,3,8,8]
  %at = data : u8[2,3,4,4]
  %y = fusion(%x, %at) : f32[2,3,4,4] graph body {
    %x = data : f32[2,3,8,8]
    %at = data : u8[2,3,4,4]
    %y = max_pool_gather(%x, %at) {pad=[1,1], stride=[2,2], window=[3,3]} : f32[2,3,4,4]
    return %y
  }
  return %y
})");
  EXPECT_NO_THROW(
      ir::Interpret(*fused, DrawInputs(*fused, 1), ir::EvalMode::kTyped));
  try {
    ir::Interpret(*graph, outside, ir::EvalMode::kTyped);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("position 0 of the window at row "
                                             "-1, column -1 is outside"));
  }
}

}  // namespace
}  // namespace fusor::inspect
