#include <gtest/gtest.h>

#include <memory>
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
bool Move(ir::Graph& graph, const PassOptions& options = {}) {
  const auto inputs = test::RandomInputs(graph, 1);
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget target;
  PassContext context(target, options);
  const bool changed = MoveReshapes(graph, context);
  ir::Verify(graph);
  const auto actual = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].data, expected[i].data) << ir::Print(graph);
  }
  return changed;
}

void ExpectMoved(std::string_view before, std::string_view after) {
  const auto graph = test::ParseOrDie(before);
  EXPECT_TRUE(Move(*graph));
  test::ExpectSameGraph(after, *graph);
}

void ExpectKept(std::string_view text, const PassOptions& options = {}) {
  const auto graph = test::ParseOrDie(text);
  EXPECT_FALSE(Move(*graph, options));
  test::ExpectSameGraph(text, *graph);
}

TEST(MoveReshapes, SplitsTheProducer) {
  ExpectMoved(R"(graph g {
    %m = data : f32[6,4]
    %bias = data : f32[4]
    %z = data : f32[2,3,4]
    %b = broadcast(%bias) {dims=[1], shape=[6,4]} : f32[6,4]
    %a = add(%m, %b) : f32[6,4]
    %r = reshape(%a) {shape=[2,3,4]} : f32[2,3,4]
    %y = add(%r, %z) : f32[2,3,4]
    return %y as "y"
  })",
              R"(graph g {
    %m = data : f32[6,4]
    %bias = data : f32[4]
    %z = data : f32[2,3,4]
    %b = broadcast(%bias) {dims=[2], shape=[2,3,4]} : f32[2,3,4]
    %r = reshape(%m) {shape=[2,3,4]} : f32[2,3,4]
    %a = add(%r, %b) : f32[2,3,4]
    %y = add(%a, %z) : f32[2,3,4]
    return %y as "y"
  })");
}

// The other reader of the sum gets a view.
TEST(MoveReshapes, SplitsTheReader) {
  ExpectMoved(R"(graph g {
    %x = data : f32[2,3,4]
    %z = data : f32[6,4]
    %w = data : f32[4,4]
    %n = neg(%x) : f32[2,3,4]
    %r = reshape(%n) {shape=[6,4]} : f32[6,4]
    %a = add(%r, %z) : f32[6,4]
    %m = matmul(%a, %w) : f32[6,4]
    return %m as "m"
  })",
              R"(graph g {
    %x = data : f32[2,3,4]
    %z = data : f32[6,4]
    %w = data : f32[4,4]
    %n = neg(%x) : f32[2,3,4]
    %view = reshape(%z) {shape=[2,3,4]} : f32[2,3,4]
    %a = add(%n, %view) : f32[2,3,4]
    %r = reshape(%a) {shape=[6,4]} : f32[6,4]
    %m = matmul(%r, %w) : f32[6,4]
    return %m as "m"
  })");
}

TEST(MoveReshapes, SplitsBothSidesOfAReshapeThatMergesAndSplits) {
  ExpectMoved(R"(graph g {
    %x = data : f32[2,3,20]
    %n = neg(%x) : f32[2,3,20]
    %r = reshape(%n) {shape=[6,4,5]} : f32[6,4,5]
    %e = exp(%r) : f32[6,4,5]
    %y = transpose(%e) {permutation=[1,0,2]} : f32[4,6,5]
    return %y as "y"
  })",
              R"(graph g {
    %x = data : f32[2,3,20]
    %in = reshape(%x) {shape=[2,3,4,5]} : f32[2,3,4,5]
    %n = neg(%in) : f32[2,3,4,5]
    %e = exp(%n) : f32[2,3,4,5]
    %out = reshape(%e) {shape=[6,4,5]} : f32[6,4,5]
    %y = transpose(%out) {permutation=[1,0,2]} : f32[4,6,5]
    return %y as "y"
  })");
}

// Slices keep dimensions that they cut, and sums drop theirs.
TEST(MoveReshapes, PassesTransposesSlicesSumsAndGathers) {
  ExpectMoved(R"(graph g {
    %x = data : f32[5,24]
    %table = data : f32[7,4]
    %e = exp(%x) : f32[5,24]
    %s = slice(%e) {limit=[4,24], start=[1,0], stride=[1,1]} : f32[3,24]
    %t = transpose(%s) {permutation=[1,0]} : f32[24,3]
    %r = reshape(%t) {shape=[6,4,3]} : f32[6,4,3]
    %u = reduce(%r) {dims=[0], kind="sum"} : f32[4,3]
    return %u as "u"
  })",
              R"(graph g {
    %x = data : f32[5,24]
    %table = data : f32[7,4]
    %v = reshape(%x) {shape=[5,6,4]} : f32[5,6,4]
    %e = exp(%v) : f32[5,6,4]
    %s = slice(%e) {limit=[4,6,4], start=[1,0,0], stride=[1,1,1]} : f32[3,6,4]
    %t = transpose(%s) {permutation=[1,2,0]} : f32[6,4,3]
    %u = reduce(%t) {dims=[0], kind="sum"} : f32[4,3]
    return %u as "u"
  })");
  ExpectMoved(R"(graph g {
    %table = data : f32[7,4]
    %row = constant() {dtype="i32", shape=[6], value=[0.0,6.0,2.0,3.0,1.0,1.0]} : i32[6]
    %rows = broadcast(%row) {dims=[0], shape=[6,4]} : i32[6,4]
    %g = gather(%table, %rows) {dims=[-1,1]} : f32[6,4]
    %r = reshape(%g) {shape=[2,3,4]} : f32[2,3,4]
    %y = neg(%r) : f32[2,3,4]
    return %y as "y"
  })",
              R"(graph g {
    %table = data : f32[7,4]
    %row = constant() {dtype="i32", shape=[2,3], value=[0.0,6.0,2.0,3.0,1.0,1.0]} : i32[2,3]
    %rows = broadcast(%row) {dims=[0,1], shape=[2,3,4]} : i32[2,3,4]
    %g = gather(%table, %rows) {dims=[-1,2]} : f32[2,3,4]
    %y = neg(%g) : f32[2,3,4]
    return %y as "y"
  })");
}

TEST(MoveReshapes, ATransposeOfConcatenatedRowsIsAnotherConcatenation) {
  ExpectMoved(R"(graph g {
    %q = data : f32[1,5,4]
    %k = data : f32[1,5,4]
    %c = concat(%q, %k) {dim=0} : f32[2,5,4]
    %r = reshape(%c) {shape=[2,5,1,4]} : f32[2,5,1,4]
    %t = transpose(%r) {permutation=[2,1,0,3]} : f32[1,5,2,4]
    return %t as "t"
  })",
              R"(graph g {
    %q = data : f32[1,5,4]
    %k = data : f32[1,5,4]
    %q1 = reshape(%q) {shape=[1,5,1,4]} : f32[1,5,1,4]
    %k1 = reshape(%k) {shape=[1,5,1,4]} : f32[1,5,1,4]
    %t = concat(%q1, %k1) {dim=2} : f32[1,5,2,4]
    return %t as "t"
  })");
  // The second moves other dimensions, too.
  ExpectKept(R"(graph g {
    %q = data : f32[1,5,4]
    %c = concat(%q, %q) {dim=0} : f32[2,5,4]
    %t = transpose(%c) {permutation=[2,1,0]} : f32[4,5,2]
    return %t as "t"
  })");
}

TEST(MoveReshapes, KeepsWhatItCannotMoveOrNeedNot) {
  // Beside a library call, a reshape is a view.
  ExpectKept(R"(graph g {
    %x = data : f32[2,3,4]
    %w = data : f32[4,4]
    %n = neg(%x) : f32[2,3,4]
    %r = reshape(%n) {shape=[6,4]} : f32[6,4]
    %m = matmul(%r, %w) : f32[6,4]
    return %m as "m"
  })");
  // Only a dimension of extent 1: loops support it.
  ExpectKept(R"(graph g {
    %x = data : f32[6,4]
    %n = neg(%x) : f32[6,4]
    %r = reshape(%n) {shape=[6,1,4]} : f32[6,1,4]
    %e = exp(%r) : f32[6,1,4]
    return %e as "e"
  })");
  // 4 and 6 have no common parts.
  ExpectKept(R"(graph g {
    %x = data : f32[4,6]
    %n = neg(%x) : f32[4,6]
    %r = reshape(%n) {shape=[6,4]} : f32[6,4]
    %e = exp(%r) : f32[6,4]
    return %e as "e"
  })");
  // A slice through the dimension.
  ExpectKept(R"(graph g {
    %x = data : f32[8,4]
    %s = slice(%x) {limit=[7,4], start=[1,0], stride=[1,1]} : f32[6,4]
    %r = reshape(%s) {shape=[2,3,4]} : f32[2,3,4]
    %e = exp(%r) : f32[2,3,4]
    return %e as "e"
  })");
}

// With eager rounding, sums must not depend on fusion.
TEST(MoveReshapes, KeepsTheLoopsOfSumsWithEagerRounding) {
  constexpr std::string_view kSum = R"(graph g {
    %x = data : f32[2,3,4]
    %n = neg(%x) : f32[2,3,4]
    %r = reshape(%n) {shape=[6,4]} : f32[6,4]
    %s = reduce(%r) {dims=[0], kind="sum"} : f32[4]
    return %s as "s"
  })";
  ExpectKept(kSum, {.eager_rounding = true});
  ExpectMoved(kSum, R"(graph g {
    %x = data : f32[2,3,4]
    %n = neg(%x) : f32[2,3,4]
    %s = reduce(%n) {dims=[0,1], kind="sum"} : f32[4]
    return %s as "s"
  })");
}

// A kernel computes the transpose and the sum together with what is before.
TEST(MoveReshapes, SumsUpWhatIsTransposed) {
  constexpr char kTransposed[] = R"(graph g {
    %x = data : f32[2,3,4]
    %n = neg(%x) : f32[2,3,4]
    %t = transpose(%n) {permutation=[1,0,2]} : f32[3,2,4]
    %s = reduce(%t) {dims=[0,1], kind="sum"} : f32[4]
    return %t as "t", %s as "s"
  })";
  ExpectMoved(kTransposed, R"(graph g {
    %x = data : f32[2,3,4]
    %n = neg(%x) : f32[2,3,4]
    %t = transpose(%n) {permutation=[1,0,2]} : f32[3,2,4]
    %s = reduce(%n) {dims=[0,1], kind="sum"} : f32[4]
    return %t as "t", %s as "s"
  })");
  PassOptions eager;
  eager.eager_rounding = true;
  ExpectKept(kTransposed, eager);
  // The result would have to be transposed, or the operand is a library's.
  ExpectKept(R"(graph g {
    %x = data : f32[2,3,4]
    %n = neg(%x) : f32[2,3,4]
    %t = transpose(%n) {permutation=[1,0,2]} : f32[3,2,4]
    %s = reduce(%t) {dims=[2], kind="sum"} : f32[3,2]
    return %t as "t", %s as "s"
  })");
  ExpectKept(R"(graph g {
    %x = data : f32[2,3,4]
    %t = transpose(%x) {permutation=[1,0,2]} : f32[3,2,4]
    %s = reduce(%t) {dims=[0,1], kind="sum"} : f32[4]
    return %s as "s"
  })");
}

// The sum may then share a kernel with the addition.
TEST(MoveReshapes, SumsUpInTheShapeOfOtherReaders) {
  constexpr char kTwoShapes[] = R"(graph g {
    %m = data : f32[12,4]
    %z = data : f32[2,3,2,4]
    %r = reshape(%m) {shape=[6,2,4]} : f32[6,2,4]
    %s = reduce(%r) {dims=[0,1], kind="sum"} : f32[4]
    %q = reshape(%m) {shape=[2,3,2,4]} : f32[2,3,2,4]
    %y = add(%q, %z) : f32[2,3,2,4]
    return %s as "s", %y as "y"
  })";
  ExpectMoved(kTwoShapes, R"(graph g {
    %m = data : f32[12,4]
    %z = data : f32[2,3,2,4]
    %v = reshape(%m) {shape=[2,3,2,4]} : f32[2,3,2,4]
    %s = reduce(%v) {dims=[0,1,2], kind="sum"} : f32[4]
    %y = add(%v, %z) : f32[2,3,2,4]
    return %s as "s", %y as "y"
  })");
  PassOptions eager;
  eager.eager_rounding = true;
  ExpectKept(kTwoShapes, eager);
}

TEST(MoveReshapes, MergesEqualReshapes) {
  ExpectMoved(R"(graph g {
    %m = data : f32[6,4]
    %z = data : f32[2,3,4]
    %q = reshape(%m) {shape=[2,3,4]} : f32[2,3,4]
    %r = reshape(%m) {shape=[2,3,4]} : f32[2,3,4]
    %y = add(%q, %z) : f32[2,3,4]
    %x = mul(%r, %z) : f32[2,3,4]
    return %y as "y", %x as "x"
  })",
              R"(graph g {
    %m = data : f32[6,4]
    %z = data : f32[2,3,4]
    %q = reshape(%m) {shape=[2,3,4]} : f32[2,3,4]
    %y = add(%q, %z) : f32[2,3,4]
    %x = mul(%q, %z) : f32[2,3,4]
    return %y as "y", %x as "x"
  })");
}

// Two of three readers split rows into 2 x 3. The other one is not split.
TEST(MoveReshapes, SplitsAShapeAsMostReshapesDo) {
  ExpectMoved(R"(graph g {
    %x = data : f32[4,6]
    %w = data : f32[4,3,2]
    %z = data : f32[4,2,3]
    %e = exp(%x) : f32[4,6]
    %p = reshape(%e) {shape=[4,3,2]} : f32[4,3,2]
    %v = mul(%p, %w) : f32[4,3,2]
    %r = reshape(%e) {shape=[4,2,3]} : f32[4,2,3]
    %y = add(%r, %z) : f32[4,2,3]
    %n = neg(%x) : f32[4,6]
    %s = reshape(%n) {shape=[4,2,3]} : f32[4,2,3]
    %u = add(%s, %z) : f32[4,2,3]
    return %v as "v", %y as "y", %u as "u"
  })",
              R"(graph g {
    %x = data : f32[4,6]
    %w = data : f32[4,3,2]
    %z = data : f32[4,2,3]
    %xr = reshape(%x) {shape=[4,2,3]} : f32[4,2,3]
    %e = exp(%xr) : f32[4,2,3]
    %p = reshape(%e) {shape=[4,3,2]} : f32[4,3,2]
    %v = mul(%p, %w) : f32[4,3,2]
    %y = add(%e, %z) : f32[4,2,3]
    %n = neg(%xr) : f32[4,2,3]
    %u = add(%n, %z) : f32[4,2,3]
    return %v as "v", %y as "y", %u as "u"
  })");
}

// Rows are padded to whole windows, and these are transposed.
TEST(MoveReshapes, ComputesIndicesOfAPadThatIsSplit) {
  ExpectMoved(R"(graph g {
    %x = data : f32[5,3]
    %p = pad(%x) {high=[2,0], interior=[0,0], low=[1,0], value=4.0} : f32[8,3]
    %r = reshape(%p) {shape=[2,4,3]} : f32[2,4,3]
    %t = transpose(%r) {permutation=[1,0,2]} : f32[4,2,3]
    return %t as "t"
  })",
              R"(graph g {
    %x = data : f32[5,3]
    %i = iota() {dim=0, dtype="i32", shape=[2,4,3]} : i32[2,4,3]
    %4 = constant() {dtype="i32", shape=[2,4,3], value=[4.0]} : i32[2,4,3]
    %m = mul(%i, %4) : i32[2,4,3]
    %j = iota() {dim=1, dtype="i32", shape=[2,4,3]} : i32[2,4,3]
    %k = add(%m, %j) : i32[2,4,3]
    %1 = constant() {dtype="i32", shape=[2,4,3], value=[1.0]} : i32[2,4,3]
    %s = sub(%k, %1) : i32[2,4,3]
    %0 = constant() {dtype="i32", shape=[2,4,3], value=[0.0]} : i32[2,4,3]
    %ge = compare(%s, %0) {direction="ge"} : bool[2,4,3]
    %5 = constant() {dtype="i32", shape=[2,4,3], value=[5.0]} : i32[2,4,3]
    %lt = compare(%s, %5) {direction="lt"} : bool[2,4,3]
    %in = and(%ge, %lt) : bool[2,4,3]
    %g = gather(%x, %s) {dims=[-1,2]} : f32[2,4,3]
    %v = constant() {dtype="f32", shape=[2,4,3], value=[4.0]} : f32[2,4,3]
    %e = select(%in, %g, %v) : f32[2,4,3]
    %t = transpose(%e) {permutation=[1,0,2]} : f32[4,2,3]
    return %t as "t"
  })");
}

// A roll of a padded image.
TEST(MoveReshapes, GathersFromTheOperandOfAPad) {
  ExpectMoved(R"(graph g {
    %x = data : f32[2,3]
    %p = pad(%x) {high=[1,0], interior=[0,0], low=[0,0]} : f32[3,3]
    %i = constant() {dtype="i64", shape=[3], value=[1.0,2.0,0.0]} : i64[3]
    %b = broadcast(%i) {dims=[0], shape=[3,3]} : i64[3,3]
    %g = gather(%p, %b) {dims=[-1,1]} : f32[3,3]
    return %g as "g"
  })",
              R"(graph g {
    %x = data : f32[2,3]
    %i = constant() {dtype="i64", shape=[3], value=[1.0,2.0,0.0]} : i64[3]
    %b = broadcast(%i) {dims=[0], shape=[3,3]} : i64[3,3]
    %2 = constant() {dtype="i64", shape=[3,3], value=[2.0]} : i64[3,3]
    %in = compare(%b, %2) {direction="lt"} : bool[3,3]
    %e = gather(%x, %b) {dims=[-1,1]} : f32[3,3]
    %z = constant() {dtype="f32", shape=[3,3], value=[0.0]} : f32[3,3]
    %g = select(%in, %e, %z) : f32[3,3]
    return %g as "g"
  })");
}

TEST(MoveReshapes, KeepsOtherPads) {
  // Read by an op that a kernel can contain, too.
  ExpectKept(R"(graph g {
    %x = data : f32[5,3]
    %p = pad(%x) {high=[3,0], interior=[0,0], low=[0,0]} : f32[8,3]
    %r = reshape(%p) {shape=[2,4,3]} : f32[2,4,3]
    %e = exp(%p) : f32[8,3]
    return %r as "r", %e as "e"
  })");
  // Only another dimension is split.
  ExpectKept(R"(graph g {
    %x = data : f32[5,6]
    %p = pad(%x) {high=[3,0], interior=[0,0], low=[0,0]} : f32[8,6]
    %r = reshape(%p) {shape=[8,2,3]} : f32[8,2,3]
    return %r as "r"
  })");
  // An index outside of the pad, and one that is not known.
  ExpectKept(R"(graph g {
    %x = data : i32[2]
    %j = data : i64[3]
    %p = pad(%x) {high=[1], interior=[0], low=[0]} : i32[3]
    %i = constant() {dtype="i64", shape=[3], value=[1.0,2.0,3.0]} : i64[3]
    %g = gather(%p, %i) {dims=[-1]} : i32[3]
    %q = pad(%x) {high=[1], interior=[0], low=[0]} : i32[3]
    %h = gather(%q, %j) {dims=[-1]} : i32[3]
    return %g as "g", %h as "h"
  })");
}

TEST(MoveReshapes, SplitsIotas) {
  ExpectMoved(R"(graph g {
    %x = data : f32[2,12]
    %z = data : f32[2,4,3]
    %i = iota() {dim=1, dtype="i32", shape=[2,12]} : i32[2,12]
    %7 = constant() {dtype="i32", shape=[2,12], value=[7.0]} : i32[2,12]
    %p = compare(%i, %7) {direction="lt"} : bool[2,12]
    %s = select(%p, %x, %x) : f32[2,12]
    %r = reshape(%s) {shape=[2,4,3]} : f32[2,4,3]
    %y = add(%r, %z) : f32[2,4,3]
    return %y as "y"
  })",
              R"(graph g {
    %x = data : f32[2,12]
    %z = data : f32[2,4,3]
    %i = iota() {dim=1, dtype="i32", shape=[2,4,3]} : i32[2,4,3]
    %3 = constant() {dtype="i32", shape=[2,4,3], value=[3.0]} : i32[2,4,3]
    %m = mul(%i, %3) : i32[2,4,3]
    %j = iota() {dim=2, dtype="i32", shape=[2,4,3]} : i32[2,4,3]
    %k = add(%m, %j) : i32[2,4,3]
    %7 = constant() {dtype="i32", shape=[2,4,3], value=[7.0]} : i32[2,4,3]
    %p = compare(%k, %7) {direction="lt"} : bool[2,4,3]
    %xr = reshape(%x) {shape=[2,4,3]} : f32[2,4,3]
    %s = select(%p, %xr, %xr) : f32[2,4,3]
    %y = add(%s, %z) : f32[2,4,3]
    return %y as "y"
  })");
}

// Another dimension than the iota's is split.
TEST(MoveReshapes, KeepsTheDimensionOfIotas) {
  ExpectMoved(R"(graph g {
    %x = data : i32[12,2]
    %z = data : i32[4,3,2]
    %i = iota() {dim=1, dtype="i32", shape=[12,2]} : i32[12,2]
    %a = add(%x, %i) : i32[12,2]
    %r = reshape(%a) {shape=[4,3,2]} : i32[4,3,2]
    %y = add(%r, %z) : i32[4,3,2]
    return %y as "y"
  })",
              R"(graph g {
    %x = data : i32[12,2]
    %z = data : i32[4,3,2]
    %xr = reshape(%x) {shape=[4,3,2]} : i32[4,3,2]
    %i = iota() {dim=2, dtype="i32", shape=[4,3,2]} : i32[4,3,2]
    %a = add(%xr, %i) : i32[4,3,2]
    %y = add(%a, %z) : i32[4,3,2]
    return %y as "y"
  })");
}

TEST(MoveReshapes, KeepsTheResultsOfRandomGraphs) {
  test::RandomGraphOptions options;
  options.nodes = 40;
  int changed = 0;
  for (uint64_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    changed += Move(*test::RandomGraph(seed, options)) ? 1 : 0;
  }
  EXPECT_GE(changed, 10);
}

}  // namespace
}  // namespace fusor::passes
