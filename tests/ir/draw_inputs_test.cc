#include "ir/draw_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/graph_text.h"

namespace fusor::ir {
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
  // Of the input of that name.
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

  const std::unique_ptr<Graph> graph_ = test::ParseOrDie(kInputs);
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
  for (const double x : Draw("w")) EXPECT_EQ(x, RoundTo(DType::kF16, x));
}

TEST_F(DrawInputsTest, DependsOnSeedAndNameAlone) {
  EXPECT_EQ(Draw("x"), Draw("x"));
  EXPECT_NE(Draw("x"), Draw("x", 2));
  const auto other = test::ParseOrDie(
      "graph other {\n  %more = data : f32[3]\n  %x = data : f32[1000]\n"
      "  return %x\n}");
  EXPECT_EQ(DrawInputs(*other, 1)[1].data, Draw("x"));
}

}  // namespace
}  // namespace fusor::ir
