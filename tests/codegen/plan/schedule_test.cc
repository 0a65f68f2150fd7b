#include "codegen/plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_map>

#include "codegen/plan/views.h"
#include "ir/op.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using ir::Node;

std::vector<std::string> Names(const std::vector<Node*>& order) {
  std::vector<std::string> names;
  for (const Node* node : order) names.push_back(node->output()->name());
  return names;
}

std::vector<Node*> GraphOrder(const ir::Graph& graph) {
  std::vector<Node*> order;
  for (const auto& node : graph.nodes()) order.push_back(node.get());
  return order;
}

// Computes liveness step by step, as a simple reference.
int64_t PlainPeak(const ir::Graph& graph, const std::vector<Node*>& order) {
  std::unordered_map<const ir::Value*, size_t> last;
  for (size_t s = 0; s < order.size(); ++s) {
    if (ir::IsView(*order[s])) continue;
    for (const ir::Value* operand : order[s]->inputs()) {
      last[StorageOf(operand)] = s;
    }
  }
  int64_t peak = 0;
  for (size_t s = 0; s < order.size(); ++s) {
    int64_t live = 0;
    for (size_t d = 0; d <= s; ++d) {
      if (ir::IsView(*order[d]) || order[d]->num_inputs() == 0) continue;
      for (size_t i = 0; i < order[d]->num_outputs(); ++i) {
        const ir::Value* value = order[d]->output(i);
        const bool output = std::any_of(
            graph.outputs().begin(), graph.outputs().end(),
            [&](const ir::Output& o) { return StorageOf(o.value) == value; });
        const bool used = last.contains(value) ? last[value] >= s : d == s;
        if (used && !output) live += (value->type().num_bytes() + 63) / 64 * 64;
      }
    }
    peak = std::max(peak, live);
  }
  return peak;
}

TEST(Schedule, KeepsTheGraphsOrderWhereNothingIsBetter) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %a = neg(%x) : f32[8]
      %b = exp(%a) : f32[8]
      %c = add(%a, %b) : f32[8]
      return %c as "y"
    })");
  EXPECT_EQ(Names(Schedule(*graph)), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Schedule, FinishesOneBranchBeforeItStartsAnother) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[100]
      %a = neg(%x) : f32[100]
      %b = exp(%x) : f32[100]
      %c = tanh(%x) : f32[100]
      %ra = reduce(%a) {dims=[0], kind="sum"} : f32[]
      %rb = reduce(%b) {dims=[0], kind="sum"} : f32[]
      %rc = reduce(%c) {dims=[0], kind="sum"} : f32[]
      return %ra as "a", %rb as "b", %rc as "c"
    })");
  const std::vector<Node*> order = Schedule(*graph);
  EXPECT_EQ(PeakLiveBytes(*graph, order), 448);
  EXPECT_EQ(PeakLiveBytes(*graph, GraphOrder(*graph)), 3 * 448);
}

// %big needs much memory while it runs. It must run before the values that live
// until the end.
TEST(Schedule, RunsWhatNeedsAWorkspaceWhileLittleIsLive) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[100]
      %a = neg(%x) : f32[100]
      %b = exp(%x) : f32[100]
      %big = tanh(%x) : f32[100]
      %r = reduce(%big) {dims=[0], kind="sum"} : f32[]
      %ab = add(%a, %b) : f32[100]
      %rab = reduce(%ab) {dims=[0], kind="sum"} : f32[]
      return %r as "r", %rab as "rab"
    })");
  const auto workspace = [](const Node& node) -> int64_t {
    return node.output()->name() == "big" ? 1000 : 0;
  };
  const std::vector<Node*> order = Schedule(*graph, workspace);
  EXPECT_EQ(PeakLiveBytes(*graph, order, workspace), 1024 + 448);
  EXPECT_EQ(PeakLiveBytes(*graph, GraphOrder(*graph), workspace),
            1024 + 3 * 448);
}

TEST(Schedule, RunsReadersOfOldStateBeforeItsUpdate) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %w = weight : f32[8]
      %new = exp(%x) : f32[8]
      %view = reshape(%w) {shape=[2,4]} : f32[2,4]
      %late = neg(%view) : f32[2,4]
      %later = mul(%w, %x) : f32[8]
      return %new as "w" -> %w, %late as "y", %later as "z"
    })");
  const std::vector<std::string> names = Names(Schedule(*graph));
  EXPECT_EQ(names.back(), "new");
}

TEST(Schedule, DropsTheStateRuleWhereOldAndNewAreNeededTogether) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %a = weight : f32[8]
      %b = weight : f32[8]
      %na = neg(%b) : f32[8]
      %nb = neg(%a) : f32[8]
      %ya = mul(%a, %nb) : f32[8]
      %yb = mul(%b, %na) : f32[8]
      return %na as "a" -> %a, %nb as "b" -> %b, %ya as "ya", %yb as "yb"
    })");
  EXPECT_EQ(Schedule(*graph).size(), 4);
}

TEST(Schedule, RandomGraphsStayTopologicalAndNeverGetWorse) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto graph = test::RandomGraph(seed, {.nodes = 40, .layouts = true});
    const std::vector<Node*> order = Schedule(*graph);
    ASSERT_EQ(order.size(), graph->nodes().size());
    const int64_t peak = PeakLiveBytes(*graph, order);
    EXPECT_LE(peak, PeakLiveBytes(*graph, GraphOrder(*graph)));
    EXPECT_EQ(peak, PlainPeak(*graph, order)) << "seed " << seed;
    EXPECT_EQ(order, Schedule(*graph));
    graph->Reorder(order);  // throws unless the order is topological
  }
}

}  // namespace
}  // namespace fusor::codegen
