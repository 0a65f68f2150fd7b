#include "tests/testing/random_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "ir/io/printer.h"
#include "ir/op.h"
#include "ir/verifier.h"

namespace fusor::test {
namespace {

using ir::DType;

std::set<std::string> OpsOf(const RandomGraphOptions& options, int graphs) {
  std::set<std::string> names;
  for (int seed = 0; seed < graphs; ++seed) {
    const auto graph = RandomGraph(static_cast<uint64_t>(seed), options);
    for (const auto& node : graph->nodes()) {
      names.emplace(node->op_name());
    }
  }
  return names;
}

TEST(RandomGraph, IsTheSameForTheSameSeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Print(*RandomGraph(seed)), Print(*RandomGraph(seed)));
    EXPECT_NE(Print(*RandomGraph(seed)), Print(*RandomGraph(seed + 1)));
  }
}

TEST(RandomGraph, HasAsManyNodesAsAskedAndLeavesNoValueUnused) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto graph = RandomGraph(seed, {.nodes = 40});
    EXPECT_GE(graph->nodes().size(), 40u);
    EXPECT_LT(graph->nodes().size(), 60u);
    for (const auto& node : graph->nodes()) {
      EXPECT_FALSE(graph->IsUnused(node->output())) << Print(*node);
    }
  }
}

TEST(RandomGraph, ReachesEveryOpOfItsClasses) {
  const std::set<std::string> all =
      OpsOf({.dtypes = {DType::kF32, DType::kI32, DType::kBool},
             .layouts = true,
             .fusions = true},
            200);
  for (const char* name :
       {"abs",    "add",    "and",      "broadcast", "cast",    "compare",
        "concat", "copy",   "constant", "div",       "erf",     "exp",
        "floor",  "fusion", "iota",     "log",       "maximum", "minimum",
        "mul",    "neg",    "not",      "or",        "pad",     "pow",
        "reduce", "relu",   "reshape",  "rsqrt",     "select",  "slice",
        "sqrt",   "sub",    "tanh",     "transpose"}) {
    EXPECT_TRUE(all.contains(name)) << name;
  }
}

// Fails until the generator covers a new op.
TEST(RandomGraph, ReachesEveryOpOfTheRegistry) {
  std::set<std::string> reached;
  for (const bool layouts : {false, true}) {
    reached.merge(
        OpsOf({.ops = kEveryOp,
               .dtypes = {std::begin(ir::kAllDTypes), std::end(ir::kAllDTypes)},
               .layouts = layouts,
               .fusions = true,
               .repeat = 0.1,
               .wrap = true},
              150));
  }
  for (const ir::OpDef* op : ir::AllOps()) {
    EXPECT_TRUE(reached.contains(std::string(op->name))) << op->name;
  }
}

// Returns the share of subtractions whose operands are the same value.
double RepeatedShare(double chance) {
  int64_t all = 0;
  int64_t repeated = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto graph =
        RandomGraph(seed, {.ops = kElementwise | kLibrary, .repeat = chance});
    for (const auto& node : graph->nodes()) {
      if (node->op_name() != "sub") continue;
      ++all;
      repeated += node->input(0) == node->input(1) ? 1 : 0;
    }
  }
  return static_cast<double>(repeated) / static_cast<double>(all);
}

TEST(RandomGraph, RepeatsOperandsAsOftenAsAsked) {
  EXPECT_LT(RepeatedShare(0), 0.5);
  EXPECT_GT(RepeatedShare(0.8), 0.7);
}

TEST(RandomGraph, KeepsToTheClassesAskedFor) {
  for (const std::string& name :
       OpsOf({.ops = kElementwise | kBroadcast | kReduce}, 100)) {
    const ir::OpDef& op = ir::GetOp(name);
    EXPECT_TRUE(op.fusion == ir::FusionKind::kElementwise ||
                op.fusion == ir::FusionKind::kReduce ||
                op.fusion == ir::FusionKind::kSource || name == "broadcast")
        << name;
    EXPECT_NE(name, "compare");
    EXPECT_NE(name, "cast");
  }
}

class RandomGraphValues : public ::testing::TestWithParam<DType> {};

// Tests every dtype by itself, and mixed with f32 so that casts occur.
TEST_P(RandomGraphValues, AreFinite) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<DType> dtypes{GetParam()};
    if (seed % 2 == 1) dtypes.push_back(DType::kF32);
    RandomGraphOptions options{.nodes = 30, .dtypes = dtypes};
    if (seed % 4 >= 2) options.ops = kEveryOp;
    if (seed % 8 >= 4) options.repeat = 0.3;
    const auto graph = RandomGraph(seed, options);
    const auto inputs = RandomInputs(*graph, seed);
    for (const auto mode : {ir::EvalMode::kTyped, ir::EvalMode::kExact}) {
      for (const ir::Tensor& tensor : Interpret(*graph, inputs, mode)) {
        for (const double x : tensor.data) {
          ASSERT_TRUE(std::isfinite(x)) << "seed " << seed << Print(*graph);
          ASSERT_EQ(x, mode == ir::EvalMode::kTyped
                           ? ir::RoundTo(tensor.type.dtype, x)
                           : x);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, RandomGraphValues,
                         ::testing::ValuesIn(ir::kAllDTypes),
                         [](const auto& param) {
                           return std::string(ir::DTypeName(param.param));
                         });

}  // namespace
}  // namespace fusor::test
