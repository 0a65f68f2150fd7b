// Random graphs with random allow and deny lists. Casts must be inserted
// exactly where precisions differ.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "ir/io/printer.h"
#include "ir/op.h"
#include "ir/support/philox.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::Node;
using ir::Value;

constexpr uint64_t kGraphs = 500;

bool IsCast(const Node& node) {
  return node.num_inputs() == 1 && node.attrs().Has("dtype");
}

// Puts half of the graph's elementwise ops on one of the lists.
PrecisionOptions RandomLists(const Graph& graph, uint64_t seed) {
  PrecisionOptions options;
  options.dtype = seed % 2 == 0 ? DType::kBF16 : DType::kF16;
  uint32_t i = 0;
  std::set<std::string> seen;
  for (const auto& node : graph.nodes()) {
    const std::string name(node->op_name());
    if (IsCast(*node) || !seen.insert(name).second) continue;
    const uint32_t draw = Philox({i++, 0, 0, 0}, seed)[0] % 4;
    const bool elementwise = node->op().fusion == ir::FusionKind::kElementwise;
    if (draw == 0 && elementwise) options.allow.insert(name);
    if (draw == 1) options.deny.insert(name);
  }
  return options;
}

struct Painted {
  std::unique_ptr<Graph> graph;
  std::set<const Node*> casts;  // inserted by the pass
};

Painted Paint(const Graph& original, const PrecisionOptions& precision,
              const ir::TargetQueries& target) {
  PassOptions options;
  options.precision = precision;
  Painted painted;
  painted.graph = original.Clone();
  std::set<const Node*> before;
  for (const auto& node : painted.graph->nodes()) before.insert(node.get());
  PassContext context(target, options);
  MixedPrecision(*painted.graph, context);
  ir::Verify(*painted.graph);
  for (const auto& node : painted.graph->nodes()) {
    if (!before.contains(node.get())) painted.casts.insert(node.get());
  }
  const std::string once = ir::Print(*painted.graph);
  PassContext again(target, options);
  EXPECT_FALSE(MixedPrecision(*painted.graph, again));
  EXPECT_EQ(ir::Print(*painted.graph), once);
  return painted;
}

// Each inserted node is a cast between f32 and the narrow dtype. No two cast
// the same value, and the readers require the new dtype.
void ExpectCastsAtBorders(const Painted& painted, DType narrow) {
  std::set<const Value*> sources;
  for (const Node* cast : painted.casts) {
    ASSERT_TRUE(IsCast(*cast)) << Print(*cast);
    const DType from = cast->input(0)->type().dtype;
    const DType to = cast->output()->type().dtype;
    EXPECT_TRUE((from == DType::kF32 && to == narrow) ||
                (from == narrow && to == DType::kF32))
        << Print(*cast);
    EXPECT_TRUE(sources.insert(cast->input(0)).second)
        << cast->input(0)->name() << " is cast twice";
    EXPECT_FALSE(painted.graph->IsUnused(cast->output())) << Print(*cast);
    for (const ir::Use& use : cast->output()->uses()) {
      // Two casts in a row occur only as rounding in f32, for targets without
      // the dtype's arithmetic.
      EXPECT_TRUE(!painted.casts.contains(use.node) || narrow == DType::kF16)
          << Print(*cast) << " feeds " << Print(*use.node);
    }
  }
}

TEST(MixedPrecisionRandom, PutsCastsWherePrecisionsMeetAndNowhereElse) {
  const test::BareTarget target;
  int64_t casts = 0;
  for (uint64_t seed = 0; seed < kGraphs; ++seed) {
    const auto graph = test::RandomGraph(seed, {.nodes = 25, .max_rank = 2});
    const PrecisionOptions options = RandomLists(*graph, seed);
    const Painted painted = Paint(*graph, options, target);
    ExpectCastsAtBorders(painted, options.dtype);
    casts += static_cast<int64_t>(painted.casts.size());
    if (HasFailure()) {
      FAIL() << "seed " << seed << "\n" << ir::Print(*painted.graph);
    }
  }
  EXPECT_GT(casts, static_cast<int64_t>(kGraphs));
}

// The dtype that a reader requires of its operand, for every edge of the
// original graph, by the positions of reader and operand.
using Edge = std::tuple<std::string, int>;
struct Wanted {
  DType value;  // of the producer's result
  bool cast;    // between producer and reader
  DType seen;   // by the reader
};

std::map<Edge, Wanted> Edges(const Painted& painted) {
  std::map<Edge, Wanted> edges;
  for (const auto& node : painted.graph->nodes()) {
    if (painted.casts.contains(node.get())) continue;
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      const Value* value = node->input(i);
      const DType seen = value->type().dtype;
      bool cast = false;
      while (painted.casts.contains(value->producer())) {
        cast = true;
        value = value->producer()->input(0);
      }
      edges[{node->output()->name(), static_cast<int>(i)}] = {
          value->type().dtype, cast, seen};
    }
  }
  return edges;
}

// Moving one op to another list changes only casts of edges whose ends change
// precision.
TEST(MixedPrecisionRandom, MovingAnOpChangesTheCastsAtItsBorderOnly) {
  const test::BareTarget target;
  int64_t changed = 0;
  for (uint64_t seed = 0; seed < kGraphs; seed += 2) {  // bf16
    const auto graph = test::RandomGraph(seed, {.nodes = 25, .max_rank = 2});
    PrecisionOptions options = RandomLists(*graph, seed);
    if (options.allow.empty()) continue;
    const auto before = Edges(Paint(*graph, options, target));
    const std::string moved = *options.allow.begin();
    options.allow.erase(moved);
    options.deny.insert(moved);
    const auto after = Edges(Paint(*graph, options, target));
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [edge, a] : before) {
      const Wanted& b = after.at(edge);
      EXPECT_EQ(a.cast, a.value != a.seen) << std::get<0>(edge);
      if (a.cast != b.cast) {
        ++changed;
        EXPECT_TRUE(a.value != b.value || a.seen != b.seen)
            << std::get<0>(edge);
      }
    }
    if (HasFailure()) FAIL() << "seed " << seed << ", moved " << moved;
  }
  EXPECT_GT(changed, 100);
}

}  // namespace
}  // namespace fusor::passes
