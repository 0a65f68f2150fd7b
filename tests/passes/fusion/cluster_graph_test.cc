#include <gtest/gtest.h>

#include <set>

#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "passes/fusion/clustering.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::Use;

std::set<int> Successors(const ClusterGraph& units, int unit) {
  std::set<int> next;
  for (const Node* node : units.members(unit)) {
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      for (const Use& use : node->output(i)->uses()) {
        next.insert(units.UnitOf(*use.node));
      }
    }
  }
  next.erase(unit);
  return next;
}

// Returns whether a path leads from one unit to the other through a third. Uses
// no topological order.
bool PathThroughOthers(const ClusterGraph& units, int from, int to) {
  std::set<int> seen;
  std::vector<int> stack;
  for (int unit : Successors(units, from)) {
    if (unit != to && seen.insert(unit).second) stack.push_back(unit);
  }
  while (!stack.empty()) {
    const int unit = stack.back();
    stack.pop_back();
    for (int next : Successors(units, unit)) {
      if (next == to) return true;
      if (seen.insert(next).second) stack.push_back(next);
    }
  }
  return false;
}

TEST(ClusterGraph, KnowsEveryCycleWhateverHasBeenMerged) {
  int merges = 0;
  int cycles = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto graph = test::RandomGraph(seed, {.nodes = 40});
    const auto size = static_cast<uint32_t>(graph->nodes().size());
    ClusterGraph units(*graph);
    for (uint32_t i = 0; i < 300; ++i) {
      const auto draw = Philox({i, 0, 0, 0}, seed);
      const int a = static_cast<int>(draw[0] % size);
      const int b = static_cast<int>(draw[1] % size);
      if (a == b || units.members(a).empty() || units.members(b).empty()) {
        continue;
      }
      const bool cycle =
          PathThroughOthers(units, a, b) || PathThroughOthers(units, b, a);
      ASSERT_EQ(units.MergeMakesCycle(a, b), cycle)
          << "seed " << seed << ", " << a << " and " << b;
      if (cycle) {
        ++cycles;
        continue;
      }
      units.Merge(a, b);
      ++merges;
    }
  }
  EXPECT_GT(merges, 1000);
  EXPECT_GT(cycles, 1000);
}

TEST(ClusterGraph, KeepsMembersInTheGraphsOrder) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[8]
      %a = neg(%x) : f32[8]
      %b = exp(%x) : f32[8]
      %c = add(%a, %b) : f32[8]
      return %c as "y"
    })");
  ClusterGraph units(*graph);
  EXPECT_FALSE(units.MergeMakesCycle(0, 2));
  units.Merge(2, 0);
  ASSERT_EQ(units.members(2).size(), 2u);
  EXPECT_EQ(units.members(2)[0], graph->nodes()[0].get());
  EXPECT_EQ(units.members(2)[1], graph->nodes()[2].get());
  EXPECT_TRUE(units.members(0).empty());
  EXPECT_EQ(units.UnitOf(*graph->nodes()[0]), 2);
  EXPECT_FALSE(units.MergeMakesCycle(1, 2));
}

// Merging two units would make a cycle through two others. These are merged
// first, so that the path leads through a unit of several nodes.
TEST(ClusterGraph, RejectsToMergeACycle) {
  const auto graph = test::ParseOrDie(R"(graph g {
      %x = data : f32[8]
      %a = neg(%x) : f32[8]
      %b = exp(%a) : f32[8]
      %c = neg(%b) : f32[8]
      %d = add(%a, %c) : f32[8]
      return %d as "y"
    })");
  ClusterGraph units(*graph);
  EXPECT_TRUE(units.MergeMakesCycle(0, 3));
  EXPECT_THROW(units.Merge(0, 3), Error);
  units.Merge(1, 2);
  EXPECT_TRUE(units.MergeMakesCycle(3, 0));
  units.Merge(0, 1);
  EXPECT_FALSE(units.MergeMakesCycle(0, 3));
}

}  // namespace
}  // namespace fusor::passes
