#include <gtest/gtest.h>

#include <string_view>

#include "ir/interpreter/interpreter.h"
#include "ir/io/printer.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/random_graph.h"

namespace fusor::passes {
namespace {

// Runs the pass and checks that it keeps the results.
bool Hoist(ir::Graph& graph) {
  const auto inputs = test::RandomInputs(graph, 1);
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget target;
  PassContext context(target, {});
  const bool changed = HoistSlices(graph, context);
  ir::Verify(graph);
  const auto actual = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].data, expected[i].data) << ir::Print(graph);
  }
  return changed;
}

void ExpectHoisted(std::string_view before, std::string_view after) {
  const auto graph = test::ParseOrDie(before);
  EXPECT_EQ(Hoist(*graph), before != after);
  test::ExpectSameGraph(after, *graph);
}

// Queries and keys of one matmul with a bias.
TEST(HoistSlices, SlicesOperandsInsteadOfTheResult) {
  ExpectHoisted(R"(graph g {
    %m = data : f32[5,2,4]
    %bias = data : f32[2,4]
    %b = broadcast(%bias) {dims=[1,2], shape=[5,2,4]} : f32[5,2,4]
    %a = add(%m, %b) : f32[5,2,4]
    %t = transpose(%a) {permutation=[1,0,2]} : f32[2,5,4]
    %q = slice(%t) {limit=[1,5,4], start=[0,0,0], stride=[1,1,1]} : f32[1,5,4]
    %k = slice(%t) {limit=[2,5,4], start=[1,0,0], stride=[1,1,1]} : f32[1,5,4]
    return %q as "q", %k as "k"
  })",
                R"(graph g {
    %m = data : f32[5,2,4]
    %bias = data : f32[2,4]
    %b = broadcast(%bias) {dims=[1,2], shape=[5,2,4]} : f32[5,2,4]
    %mt = transpose(%m) {permutation=[1,0,2]} : f32[2,5,4]
    %mq = slice(%mt) {limit=[1,5,4], start=[0,0,0], stride=[1,1,1]} : f32[1,5,4]
    %bt = transpose(%b) {permutation=[1,0,2]} : f32[2,5,4]
    %bq = slice(%bt) {limit=[1,5,4], start=[0,0,0], stride=[1,1,1]} : f32[1,5,4]
    %q = add(%mq, %bq) : f32[1,5,4]
    %mt2 = transpose(%m) {permutation=[1,0,2]} : f32[2,5,4]
    %mk = slice(%mt2) {limit=[2,5,4], start=[1,0,0], stride=[1,1,1]} : f32[1,5,4]
    %bt2 = transpose(%b) {permutation=[1,0,2]} : f32[2,5,4]
    %bk = slice(%bt2) {limit=[2,5,4], start=[1,0,0], stride=[1,1,1]} : f32[1,5,4]
    %k = add(%mk, %bk) : f32[1,5,4]
    return %q as "q", %k as "k"
  })");
}

TEST(HoistSlices, KeepsTheLayoutsOfTheSlices) {
  ExpectHoisted(R"(graph g {
    %x = data : f32[1,6,2,2]
    %a = exp(%x) : f32[1,6,2,2]
    %q = slice(%a) {limit=[1,3,2,2], start=[0,0,0,0], stride=[1,1,1,1]} : f32[1,3,2,2]{acdb}
    %k = slice(%a) {limit=[1,6,2,2], start=[0,3,0,0], stride=[1,1,1,1]} : f32[1,3,2,2]
    return %q as "q", %k as "k"
  })",
                R"(graph g {
    %x = data : f32[1,6,2,2]
    %xq = slice(%x) {limit=[1,3,2,2], start=[0,0,0,0], stride=[1,1,1,1]} : f32[1,3,2,2]{acdb}
    %q = exp(%xq) : f32[1,3,2,2]{acdb}
    %xk = slice(%x) {limit=[1,6,2,2], start=[0,3,0,0], stride=[1,1,1,1]} : f32[1,3,2,2]
    %k = exp(%xk) : f32[1,3,2,2]
    return %q as "q", %k as "k"
  })");
}

TEST(HoistSlices, KeepsOpsThatAreReadWholeOrTwice) {
  constexpr std::string_view kWhole = R"(graph g {
    %x = data : f32[4,4]
    %a = exp(%x) : f32[4,4]
    %s = slice(%a) {limit=[2,4], start=[0,0], stride=[1,1]} : f32[2,4]
    %n = neg(%a) : f32[4,4]
    return %s as "s", %n as "n"
  })";
  ExpectHoisted(kWhole, kWhole);
  constexpr std::string_view kOverlap = R"(graph g {
    %x = data : f32[4,4]
    %a = exp(%x) : f32[4,4]
    %s = slice(%a) {limit=[3,4], start=[0,0], stride=[1,1]} : f32[3,4]
    %t = slice(%a) {limit=[4,4], start=[1,0], stride=[1,1]} : f32[3,4]
    return %s as "s", %t as "t"
  })";
  ExpectHoisted(kOverlap, kOverlap);
}

// The kernel of the sum computes the product as well.
TEST(HoistSlices, KeepsOpsOfAKernelThatComputesTheirOperand) {
  constexpr std::string_view kNorm = R"(graph g {
    %x = data : f32[4,8]
    %sum = reduce(%x) {dims=[1], kind="sum"} : f32[4]
    %sums = broadcast(%sum) {dims=[0], shape=[4,8]} : f32[4,8]
    %e = exp(%x) : f32[4,8]
    %p = mul(%e, %sums) : f32[4,8]
    %s = slice(%p) {limit=[4,4], start=[0,0], stride=[1,1]} : f32[4,4]
    return %s as "s"
  })";
  ExpectHoisted(kNorm, kNorm);
}

TEST(HoistSlices, KeepsTheResultsOfRandomGraphs) {
  test::RandomGraphOptions options;
  options.nodes = 20;
  options.ops = test::kElementwise | test::kMovement;
  int changed = 0;
  for (uint64_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    changed += Hoist(*test::RandomGraph(seed, options)) ? 1 : 0;
  }
  EXPECT_GE(changed, 10);
}

}  // namespace
}  // namespace fusor::passes
