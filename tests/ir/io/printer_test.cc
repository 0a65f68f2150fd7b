#include "ir/io/printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/io/parser.h"

namespace fusor::ir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Builds the example in printer.h.
std::unique_ptr<Graph> Example() {
  auto graph = std::make_unique<Graph>("example");
  Value* x = graph->AddInput({DType::kF32, {8, 64}, {}}, InputRole::kData, "x");
  Value* w =
      graph->AddInput({DType::kF32, {10, 64}, {}}, InputRole::kWeight, "w",
                      {{"init", std::string("normal")}, {"std", 0.1}});
  Builder b(*graph);
  b.Inherit({"head.fc", SourceLine("mlp.cc", 33)});
  Value* y = b.Matmul(x, w, false, true);
  graph->Rename(y, "y");
  auto body = std::make_unique<Graph>("softplus");
  Builder inner(*body);
  inner.Inherit({});
  Value* p = body->AddInput(y->type(), InputRole::kData, "p");
  body->AddOutput(inner.ReduceSum(inner.Exp(p), {0}), "");
  body->Rename(body->outputs()[0].value, "sum");
  Node* f = graph->AddNode("fusion", {y}, {}, "head", nullptr, std::move(body));
  graph->Rename(f->output(), "f");
  graph->AddOutput(f->output(), "loss");
  graph->AddOutput(w, "w", 1);
  return graph;
}

std::string FloatText(double x) {
  Graph graph;
  Builder(graph).Scalar(DType::kF64, x);
  const std::string text = Print(*graph.nodes()[0]);
  const size_t from = text.find("value=[") + 7;
  return text.substr(from, text.find(']', from) - from);
}

TEST(Printer, WritesOneNodeALine) {
  EXPECT_EQ(Print(*Example()), R"(graph example {
  %x = data : f32[8,64]
  %w = weight {init="normal", std=0.1} : f32[10,64]
  %y = matmul(%x, %w) {transpose_b=true} : f32[8,10] @"head.fc" "mlp.cc:33"
  %f = fusion(%y) : f32[10] @"head" graph softplus {
    %p = data : f32[8,10]
    %exp = exp(%p) : f32[8,10]
    %sum = reduce(%exp) {dims=[0], kind="sum"} : f32[10]
    return %sum
  }
  return %f as "loss", %w as "w" -> %w
}
)");
}

TEST(Printer, LeavesLocationsOutWhenAsked) {
  EXPECT_THAT(Print(*Example(), {.locations = false}),
              Not(::testing::AnyOf(HasSubstr("@"), HasSubstr("mlp.cc"))));
}

TEST(Printer, ElidesLongConstantsWhenAsked) {
  Graph graph;
  Builder b(graph);
  b.Constant(DType::kF32, {3}, {1, 2, 3});
  b.Constant(DType::kF32, {4}, {1, 2, 3, 4});
  const std::string text = Print(graph, {.max_list = 3});
  EXPECT_THAT(text, HasSubstr("value=[1.0,2.0,3.0]"));
  EXPECT_THAT(text, HasSubstr("value=<4 values>"));
}

TEST(Printer, CommentsOnBodiesAreNotParsed) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %f = fusion(%x) : f32[4] {
      %p = data : f32[4]
      %r = neg(%p) : f32[4]
      return %r
    }
    return %f
  })");
  const std::string text = Print(*graph, {.comment = [](const Node& node) {
    return "kernel " + node.output()->name();
  }});
  EXPECT_THAT(text, HasSubstr("= fusion(%x) : f32[4] {  // kernel f\n"));
  test::ExpectSameGraph(text, *graph);
}

TEST(Printer, WritesFloatsAsShortAsTheyReadBack) {
  EXPECT_EQ(FloatText(0.1), "0.1");
  EXPECT_EQ(FloatText(1), "1.0");
  EXPECT_EQ(FloatText(-0.0), "-0.0");
  EXPECT_EQ(FloatText(1e300), "1e+300");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(FloatText(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(FloatText(std::bit_cast<double>(uint64_t{0x7ff8000000000001})),
            "nan(0x7ff8000000000001)");
}

TEST(Printer, QuotesNamesThatAreNoWords) {
  Graph graph("two words");
  graph.AddInput({DType::kF32, {}, {}}, InputRole::kData, "a \"b\"\n\x01");
  graph.AddInput({DType::kF32, {}, {}}, InputRole::kData, "1.conv$w_0");
  EXPECT_EQ(Print(graph), R"(graph "two words" {
  %"a \"b\"\n\x01" = data : f32[]
  %1.conv$w_0 = data : f32[]
  return
}
)");
}

TEST(Printer, BreaksOutputsThatDoNotFitALine) {
  Graph graph;
  for (const char* name : {"a_rather_long_name", "another_long_name"}) {
    Value* value =
        graph.AddInput({DType::kF32, {2}, {}}, InputRole::kStatistic, name);
    graph.AddOutput(value, name, value->index());
  }
  EXPECT_EQ(Print(graph), R"(graph graph {
  %a_rather_long_name = statistic : f32[2]
  %another_long_name = statistic : f32[2]
  return %a_rather_long_name as "a_rather_long_name" -> %a_rather_long_name,
      %another_long_name as "another_long_name" -> %another_long_name
}
)");
}

TEST(Printer, WritesLayoutsAndSeveralResults) {
  Graph graph;
  Value* x =
      graph.AddInput({DType::kF32, {2, 16, 4, 4}, ParseLayout("aBcd16b")},
                     InputRole::kData, "x");
  Builder b(graph);
  b.Inherit({});
  Node* pool = b.Add("max_pool", {x},
                     {{"window", std::vector<int64_t>{2, 2}},
                      {"stride", std::vector<int64_t>{2, 2}}});
  EXPECT_EQ(Print(*pool),
            "%max_pool, %max_pool_1 = max_pool(%x) {stride=[2,2], "
            "window=[2,2]} : f32[2,16,2,2], u8[2,16,2,2]");
  EXPECT_THAT(Print(graph), HasSubstr("%x = data : f32[2,16,4,4]{aBcd16b}\n"));
}

}  // namespace
}  // namespace fusor::ir
