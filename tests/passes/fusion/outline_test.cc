#include "passes/fusion/outline.h"

#include <gtest/gtest.h>

#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;

Node* At(const Graph& graph, size_t i) { return graph.nodes()[i].get(); }

TEST(Outline, ReturnsWhatOthersReadUnderItsName) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %a = neg(%x) : f32[4] @"l1"
      %b = exp(%a) : f32[4] @"l2"
      %c = sqrt(%b) : f32[4]
      return %b as "b", %c as "c"
    })");
  const OutlineRequest request{.members = {At(*graph, 0), At(*graph, 1)},
                               .location = {"here", {}},
                               .eager_rounding = true};
  const std::vector<Node*> fusions = Outline(*graph, {&request, 1});
  ASSERT_EQ(fusions.size(), 1u);
  EXPECT_EQ(fusions[0], At(*graph, 0));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %b = fusion(%x) {rounding="eager"} : f32[4] @"here" graph fusion {
        %x = data : f32[4]
        %a = neg(%x) : f32[4] @"l1"
        %b = exp(%a) : f32[4] @"l2"
        return %b as "b"
      }
      %c = sqrt(%b) : f32[4]
      return %b as "b", %c as "c"
    })",
                        *graph, test::Names::kCompare);
}

// The second request reads the result of the first.
TEST(Outline, OutlinesAllRequestsAtOnce) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %a = neg(%x) : f32[4]
      %b = exp(%a) : f32[4]
      return %b as "b"
    })");
  const OutlineRequest requests[] = {{.members = {At(*graph, 0)}},
                                     {.members = {At(*graph, 1)}}};
  EXPECT_EQ(Outline(*graph, requests).size(), 2u);
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %a = fusion(%x) : f32[4] {
        %x = data : f32[4]
        %a = neg(%x) : f32[4]
        return %a as "a"
      }
      %b = fusion(%a) : f32[4] {
        %a = data : f32[4]
        %b = exp(%a) : f32[4]
        return %b as "b"
      }
      return %b as "b"
    })",
                        *graph);
}

TEST(Outline, KeepsMembersThatOthersStillRead) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %a = neg(%x) : f32[4]
      %b = exp(%a) : f32[4]
      return %a as "a", %b as "b"
    })");
  const OutlineRequest request{.members = {At(*graph, 0), At(*graph, 1)},
                               .results = {At(*graph, 1)->output()}};
  Outline(*graph, {&request, 1});
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %a = neg(%x) : f32[4]
      %b = fusion(%x) : f32[4] {
        %x = data : f32[4]
        %a = neg(%x) : f32[4]
        %b = exp(%a) : f32[4]
        return %b as "b"
      }
      return %a as "a", %b as "b"
    })",
                        *graph);
}

TEST(Outline, GivesRepeatedOperandsSeparateInputsOnRequest) {
  for (const bool separate : {false, true}) {
    const auto graph = test::ParseOrDie(R"(graph g {
        %x = data : f32[4]
        %a = add(%x, %x) : f32[4]
        return %a as "a"
      })");
    const OutlineRequest request{.members = {At(*graph, 0)},
                                 .separate_operands = separate};
    const Node* fusion = Outline(*graph, {&request, 1})[0];
    EXPECT_EQ(fusion->num_inputs(), separate ? 2u : 1u);
    EXPECT_EQ(fusion->body()->inputs().size(), separate ? 2u : 1u);
  }
}

// A rewrite may make a result equal to an operand, or leave an operand unused.
// The body must contain neither.
TEST(Outline, ForwardsOperandsAndDropsUnusedOnesAfterARewrite) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %y = data : f32[4]
      %a = add(%x, %y) : f32[4]
      %b = neg(%a) : f32[4]
      return %a as "a", %b as "b"
    })");
  OutlineRequest request{.members = {At(*graph, 0), At(*graph, 1)}};
  request.rewrite = [](Graph& body) {
    Node* add = At(body, 0);
    body.ReplaceAllUses(add->output(), body.input(0));
    body.Erase(add);
  };
  Outline(*graph, {&request, 1});
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %y = data : f32[4]
      %b = fusion(%x) : f32[4] {
        %x = data : f32[4]
        %neg = neg(%x) : f32[4]
        return %neg as "b"
      }
      return %x as "a", %b as "b"
    })",
                        *graph);
}

TEST(Outline, AddsNothingIfARewriteLeavesNoResult) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %a = neg(%x) : f32[4]
      return %a as "a"
    })");
  OutlineRequest request{.members = {At(*graph, 0)}};
  request.rewrite = [](Graph& body) {
    body.ReplaceAllUses(At(body, 0)->output(), body.input(0));
    body.Erase(At(body, 0));
  };
  EXPECT_EQ(Outline(*graph, {&request, 1}), std::vector<Node*>{nullptr});
  EXPECT_TRUE(graph->nodes().empty());
  EXPECT_EQ(graph->outputs()[0].value, graph->input(0));
}

// The body is not a copy of the nodes that the fusion replaces.
TEST(ReplaceByFusion, KeepsNamesAndErasesWhatItReplaces) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %y = data : f32[4]
      %a = neg(%x) : f32[4] @"l1"
      %b = neg(%y) : f32[4] @"l2"
      %c = add(%b, %a) : f32[4]
      return %a as "a", %c as "c"
    })");
  Node* a = At(*graph, 0);
  Node* b = At(*graph, 1);
  FusionBody body("both");
  for (Node* node : {b, a}) {
    const Node* copy = body.AddCopy(*node, {body.AddInput(node->input(0))});
    body.AddOutput(copy->output(), node->output());
  }
  const Node* fusion =
      ReplaceByFusion(*graph, std::move(body), {}, {"here", {}}, a, {a, b});
  EXPECT_EQ(fusion, At(*graph, 0));
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %y = data : f32[4]
      %b, %a = fusion(%y, %x) : f32[4], f32[4] @"here" graph both {
        %y = data : f32[4]
        %x = data : f32[4]
        %l2.neg = neg(%y) : f32[4] @"l2"
        %l1.neg = neg(%x) : f32[4] @"l1"
        return %l2.neg as "b", %l1.neg as "a"
      }
      %c = add(%b, %a) : f32[4]
      return %a as "a", %c as "c"
    })",
                        *graph, test::Names::kCompare);
}

TEST(Inline, ReplacesAFusionByItsBody) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[4]
      %y = neg(%x) : f32[4] @"l1"
      %b, %a = fusion(%y) : f32[4], f32[4] @"here" {
        %x = data : f32[4]
        %one = neg(%x) : f32[4]
        %two = exp(%one) : f32[4]
        return %two as "two", %one as "one"
      }
      %c = sqrt(%b) : f32[4]
      return %a as "a", %c as "c"
    })");
  EXPECT_EQ(Inline(*graph, At(*graph, 1)).size(), 2u);
  test::ExpectSameGraph(R"(graph g {
      %x = data : f32[4]
      %y = neg(%x) : f32[4] @"l1"
      %a = neg(%y) : f32[4] @"here"
      %b = exp(%a) : f32[4] @"here"
      %c = sqrt(%b) : f32[4]
      return %a as "a", %c as "c"
    })",
                        *graph, test::Names::kCompare);
}

}  // namespace
}  // namespace fusor::passes
