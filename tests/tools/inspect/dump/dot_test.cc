#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/io/parser.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

TEST(Dot, DrawsNodesEdgesAndAFusionAsACluster) {
  const auto graph = ir::Parse(R"(graph "a \"b\"" {
    %x = data : f32[2]
    %w = weight : f32[2]
    %neg = neg(%x) : f32[2] @"head"
    %f = fusion(%neg, %w) : f32[2] @"tail" {
      %p = data : f32[2]
      %q = data : f32[2]
      %sum = add(%p, %q) : f32[2]
      return %sum
    }
    return %f as "y" -> %w
  })");
  EXPECT_EQ(ToDot(*graph), R"(digraph "a \"b\"" {
  node [fontname="Helvetica", fontsize=10];
  edge [fontname="Helvetica", fontsize=8];
  n0 [label="%x\ndata", shape=box, style=filled, fillcolor=lightblue]
  n1 [label="%w\nweight", shape=box, style=filled, fillcolor=khaki]
  n2 [label="neg\nhead", shape=box, style=rounded]
  subgraph cluster_n3 {
    style=filled; fillcolor=gray95;
    label="%f tail";
  n4 [label="add", shape=box, style=rounded]
  }
  n5 [label="y", shape=oval]
  n0 -> n2 [label="f32[2]"]
  n2 -> n4 [label="f32[2]"]
  n1 -> n4 [label="f32[2]"]
  n4 -> n5 [label="f32[2]"]
  n5 -> n1 [style=dashed, constraint=false]
}
)");
}

TEST(Dot, AResultThatPassesThroughAFusionKeepsItsProducer) {
  const auto graph = ir::Parse(R"(graph g {
    %x = data : f32[2]
    %f = fusion(%x) : f32[2] { %p = data : f32[2] return %p }
    %y = neg(%f) : f32[2]
    return %y as "y"
  })");
  EXPECT_THAT(ToDot(*graph), HasSubstr("n0 -> n2 [label=\"f32[2]\"]"));
}

TEST(Dot, ControlCharactersDoNotBreakTheText) {
  ir::Graph graph("a\nb");
  EXPECT_THAT(ToDot(graph), HasSubstr("digraph \"a b\" {\n"));
}

}  // namespace
}  // namespace fusor::inspect
