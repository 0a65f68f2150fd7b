#include "tools/inspect/report/graph_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ir/io/parser.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<ir::Graph> Example() {
  return ir::Parse(R"(graph "</script>" {
    %x = data : f32[2,3]
    %w = weight : f32[3,4]
    %y = matmul(%x, %w) : f32[2,4] @"layer3.1.fc"
    %f = fusion(%y) : f32[2,4] @"layer3.1.act" {
      %p = data : f32[2,4]
      %sq = mul(%p, %p) : f32[2,4]
      %r = relu(%sq) : f32[2,4]
      return %r
    }
    %k = fusion(%f) : f32[2,4] @"head" {
      %p = data : f32[2,4]
      %r = neg(%p) : f32[2,4]
      return %r
    }
    return %k as "y"
  })");
}

TEST(GraphView, NamesRowsColumnsAndKinds) {
  const nlohmann::json view =
      GraphView(*Example(), {{"f", {12.5, "k_f"}}, {"r", {1, "k_r"}}});
  EXPECT_EQ(view["rows"], nlohmann::json({"layer3.1", "head"}));
  EXPECT_EQ(view["columns"], nlohmann::json({"forward"}));
  ASSERT_EQ(view["nodes"].size(), 3);
  EXPECT_EQ(view["nodes"][0]["kind"], "matrix");
  EXPECT_EQ(view["nodes"][0]["in"], nlohmann::json({-1, -2}));
  EXPECT_EQ(view["nodes"][1]["kind"], "fusion");
  EXPECT_EQ(view["nodes"][1]["us"], 12.5);
  EXPECT_EQ(view["nodes"][1]["kernel"], "k_f");
  EXPECT_EQ(view["nodes"][1]["label"], "mul, relu");
  EXPECT_FALSE(view["nodes"][1]["body"][1].contains("us")) << "of the body";
  EXPECT_EQ(view["nodes"][1]["body"][1]["in"], nlohmann::json({0}));
  EXPECT_EQ(view["nodes"][2]["kind"], "kernel");
  EXPECT_EQ(view["nodes"][2]["row"], 1);
  EXPECT_FALSE(view["nodes"][2].contains("us"));
  EXPECT_FALSE(view["nodes"][2].contains("kernel"));
}

TEST(GraphView, NamesFusionsByTheLayersThatWereLoweredToThem) {
  const auto graph = ir::Parse(R"(graph "bn" {
    %x = data : f32[2,4]
    %f = fusion(%x) : f32[2,4] @"bn1" {
      %p = data : f32[2,4]
      %bn1.batch_norm_train_1 = mul(%p, %p) : f32[2,4]
      %s = add(%bn1.batch_norm_train_1, %p) : f32[2,4]
      %r = relu(%s) : f32[2,4]
      return %r
    }
    return %f as "y"
  })");
  const nlohmann::json view = GraphView(*graph, {});
  EXPECT_EQ(view["nodes"][0]["label"], "BN-ReLU");
  EXPECT_EQ(view["nodes"][0]["ops"], "add, mul, relu");
}

TEST(GraphView, NamesOtherLargeFusionsByTheirLayersAndSmallOnesByTheirOps) {
  const auto graph = ir::Parse(R"(graph "norms" {
    %x = data : f32[2,4]
    %f = fusion(%x) : f32[2,4] {
      %p = data : f32[2,4]
      %a = abs(%p) : f32[2,4] @"encoder.0.ln_1"
      %b = sqrt(%a) : f32[2,4] @"encoder.0.ln_1"
      %c = mul(%b, %p) : f32[2,4] @"encoder.0.ln_1"
      %d = add(%c, %p) : f32[2,4] @"encoder.0.mlp"
      return %d
    }
    %g = fusion(%x) : f32[2,4] {
      %p = data : f32[2,4]
      %a = abs(%p) : f32[2,4] @"head.act"
      %b = neg(%a) : f32[2,4] @"head.act"
      return %b
    }
    %h = fusion(%x) : f32[2,4] {
      %p = data : f32[2,4]
      %a = abs(%p) : f32[2,4] @"layer1.0.downsample.1"
      %b = sqrt(%a) : f32[2,4] @"layer1.0.downsample.1"
      %c = mul(%b, %p) : f32[2,4] @"layer1.0.downsample.1"
      %d = add(%c, %p) : f32[2,4] @"3"
      return %d
    }
    return %f as "y", %g as "z", %h as "w"
  })");
  const nlohmann::json view = GraphView(*graph, {});
  EXPECT_EQ(view["nodes"][0]["label"], "ln_1, mlp");
  EXPECT_EQ(view["nodes"][1]["label"], "abs, neg");
  EXPECT_EQ(view["nodes"][2]["label"], "downsample.1, 3");
}

TEST(GraphView, ABlockIsTheNameBeforeTheSecondDotIfNumbered) {
  EXPECT_EQ(LocationBlock("conv1"), "conv1");
  EXPECT_EQ(LocationBlock("layer3.1.bn2"), "layer3.1");
  EXPECT_EQ(LocationBlock("layer3.12"), "layer3.12");
  EXPECT_EQ(LocationBlock("head.norm"), "head");
  EXPECT_EQ(LocationBlock("a.1b"), "a");
  EXPECT_EQ(LocationBlock(""), "");
}

TEST(GraphPage, IsOneFileThatNamesNoAddress) {
  const std::string page = GraphPage(*Example(), "a < b");
  EXPECT_THAT(page, HasSubstr("<title>a &lt; b</title>"));
  for (const char* reference :
       {"http:", "https:", "src=", "href=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
}

TEST(GraphPage, NamesInTheGraphCannotEndItsScript) {
  const std::string page = GraphPage(*Example(), "t");
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t start = page.find(open);
  ASSERT_NE(start, std::string::npos);
  const size_t begin = start + open.size();
  const std::string text =
      page.substr(begin, page.find("</script>", begin) - begin);
  const nlohmann::json data = nlohmann::json::parse(text);
  EXPECT_EQ(data["sections"][0]["variants"][0]["graph"]["name"], "</script>");
}

TEST(GraphPage, EqualGraphsGiveEqualBytes) {
  EXPECT_EQ(GraphPage(*Example(), "t"), GraphPage(*Example(), "t"));
}

}  // namespace
}  // namespace fusor::inspect
