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
bool RewriteAndCheck(ir::Graph& graph) {
  const auto inputs = test::RandomInputs(graph, 1);
  const auto expected = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const test::BareTarget target;
  PassContext context(target, {});
  const bool changed = RewriteConcats(graph, context);
  ir::Verify(graph);
  const auto actual = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].data, expected[i].data) << ir::Print(graph);
  }
  return changed;
}

void ExpectRewritten(std::string_view before, std::string_view after) {
  const auto graph = test::ParseOrDie(before);
  EXPECT_EQ(RewriteAndCheck(*graph), before != after);
  test::ExpectSameGraph(after, *graph);
}

void ExpectSameConcats(std::string_view text) { ExpectRewritten(text, text); }

// Swin Transformer v2 has no bias of keys.
TEST(RewriteConcats, SelectsConstantsBetweenParts) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[2,9]
    %a = slice(%x) {limit=[2,3], start=[0,0], stride=[1,1]} : f32[2,3]
    %z = constant() {dtype="f32", shape=[2,4], value=[0.0]} : f32[2,4]
    %b = slice(%x) {limit=[2,9], start=[0,7], stride=[1,1]} : f32[2,2]
    %y = concat(%a, %z, %b) {dim=1} : f32[2,9]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[2,9]
    %i = iota() {dim=1, dtype="i32", shape=[2,9]} : i32[2,9]
    %3 = constant() {dtype="i32", shape=[2,9], value=[3.0]} : i32[2,9]
    %ge = compare(%i, %3) {direction="ge"} : bool[2,9]
    %7 = constant() {dtype="i32", shape=[2,9], value=[7.0]} : i32[2,9]
    %lt = compare(%i, %7) {direction="lt"} : bool[2,9]
    %p = and(%ge, %lt) : bool[2,9]
    %z = constant() {dtype="f32", shape=[2,9], value=[0.0]} : f32[2,9]
    %y = select(%p, %z, %x) : f32[2,9]
    return %y as "y"
  })");
}

TEST(RewriteConcats, SelectsConstantsAroundAPart) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[9]
    %c = constant() {dtype="f32", shape=[3], value=[5.0]} : f32[3]
    %a = slice(%x) {limit=[7], start=[3], stride=[1]} : f32[4]
    %d = constant() {dtype="f32", shape=[1], value=[5.0]} : f32[1]
    %e = constant() {dtype="f32", shape=[1], value=[5.0]} : f32[1]
    %y = concat(%c, %a, %d, %e) {dim=0} : f32[9]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[9]
    %i = iota() {dim=0, dtype="i32", shape=[9]} : i32[9]
    %3 = constant() {dtype="i32", shape=[9], value=[3.0]} : i32[9]
    %lt = compare(%i, %3) {direction="lt"} : bool[9]
    %7 = constant() {dtype="i32", shape=[9], value=[7.0]} : i32[9]
    %ge = compare(%i, %7) {direction="ge"} : bool[9]
    %p = or(%lt, %ge) : bool[9]
    %5 = constant() {dtype="f32", shape=[9], value=[5.0]} : f32[9]
    %y = select(%p, %5, %x) : f32[9]
    return %y as "y"
  })");
}

TEST(RewriteConcats, RemovesAConcatenationOfAllParts) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[9]
    %a = slice(%x) {limit=[3], start=[0], stride=[1]} : f32[3]
    %b = slice(%x) {limit=[9], start=[3], stride=[1]} : f32[6]
    %c = concat(%a, %b) {dim=0} : f32[9]
    %y = relu(%c) : f32[9]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[9]
    %y = relu(%x) : f32[9]
    return %y as "y"
  })");
}

TEST(RewriteConcats, KeepsOtherParts) {
  // Not at its own place.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6]
    %a = slice(%x) {limit=[6], start=[2], stride=[1]} : f32[4]
    %z = constant() {dtype="f32", shape=[2], value=[0.0]} : f32[2]
    %y = concat(%a, %z) {dim=0} : f32[6]
    return %y as "y"
  })");
  // Two constants.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6]
    %a = slice(%x) {limit=[4], start=[0], stride=[1]} : f32[4]
    %z = constant() {dtype="f32", shape=[1], value=[0.0]} : f32[1]
    %n = constant() {dtype="f32", shape=[1], value=[-0.0]} : f32[1]
    %y = concat(%a, %z, %n) {dim=0} : f32[6]
    return %y as "y"
  })");
  // Two tensors.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6]
    %w = data : f32[6]
    %a = slice(%x) {limit=[4], start=[0], stride=[1]} : f32[4]
    %b = slice(%w) {limit=[6], start=[4], stride=[1]} : f32[2]
    %y = concat(%a, %b) {dim=0} : f32[6]
    return %y as "y"
  })");
  // Part of another dimension.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6,3]
    %a = slice(%x) {limit=[4,2], start=[0,0], stride=[1,1]} : f32[4,2]
    %b = slice(%x) {limit=[6,2], start=[4,0], stride=[1,1]} : f32[2,2]
    %y = concat(%a, %b) {dim=0} : f32[6,2]
    return %y as "y"
  })");
}

// The order of Swin Transformer: rows change faster than columns.
TEST(RewriteConcats, TransposesInterleavedParts) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[2,4,6,5]
    %a = slice(%x) {limit=[2,3,5,5], start=[0,0,0,0], stride=[1,2,2,1]} : f32[2,2,3,5]
    %b = slice(%x) {limit=[2,4,5,5], start=[0,1,0,0], stride=[1,2,2,1]} : f32[2,2,3,5]
    %c = slice(%x) {limit=[2,3,6,5], start=[0,0,1,0], stride=[1,2,2,1]} : f32[2,2,3,5]
    %d = slice(%x) {limit=[2,4,6,5], start=[0,1,1,0], stride=[1,2,2,1]} : f32[2,2,3,5]
    %y = concat(%a, %b, %c, %d) {dim=3} : f32[2,2,3,20]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[2,4,6,5]
    %r = reshape(%x) {shape=[2,2,2,3,2,5]} : f32[2,2,2,3,2,5]
    %t = transpose(%r) {permutation=[0,1,3,4,2,5]} : f32[2,2,3,2,2,5]
    %y = reshape(%t) {shape=[2,2,3,20]} : f32[2,2,3,20]
    return %y as "y"
  })");
}

TEST(RewriteConcats, ReshapesRowsSideBySide) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[6,8]
    %a = slice(%x) {limit=[5,8], start=[0,0], stride=[2,1]} : f32[3,8]
    %b = slice(%x) {limit=[6,8], start=[1,0], stride=[2,1]} : f32[3,8]
    %y = concat(%a, %b) {dim=1} : f32[3,16]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[6,8]
    %r = reshape(%x) {shape=[3,2,8]} : f32[3,2,8]
    %y = reshape(%r) {shape=[3,16]} : f32[3,16]
    return %y as "y"
  })");
}

// Slices with stride 1 are interleaved, too, if each has one element.
TEST(RewriteConcats, TransposesSingleRows) {
  ExpectRewritten(R"(graph g {
    %x = data : f32[3,2,8]
    %a = slice(%x) {limit=[1,2,8], start=[0,0,0], stride=[3,1,1]} : f32[1,2,8]
    %b = slice(%x) {limit=[2,2,8], start=[1,0,0], stride=[3,1,1]} : f32[1,2,8]
    %c = slice(%x) {limit=[3,2,8], start=[2,0,0], stride=[3,1,1]} : f32[1,2,8]
    %y = concat(%a, %b, %c) {dim=1} : f32[1,6,8]
    return %y as "y"
  })",
                  R"(graph g {
    %x = data : f32[3,2,8]
    %r = reshape(%x) {shape=[1,3,2,8]} : f32[1,3,2,8]
    %y = reshape(%r) {shape=[1,6,8]} : f32[1,6,8]
    return %y as "y"
  })");
}

TEST(RewriteConcats, KeepsPartsInAnotherOrder) {
  // The second part first.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6,8]
    %a = slice(%x) {limit=[5,8], start=[0,0], stride=[2,1]} : f32[3,8]
    %b = slice(%x) {limit=[6,8], start=[1,0], stride=[2,1]} : f32[3,8]
    %y = concat(%b, %a) {dim=1} : f32[3,16]
    return %y as "y"
  })");
  // Twice the same part.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6,8]
    %a = slice(%x) {limit=[5,8], start=[0,0], stride=[2,1]} : f32[3,8]
    %y = concat(%a, %a) {dim=1} : f32[3,16]
    return %y as "y"
  })");
  // Along the dimension of the stride.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[6,8]
    %a = slice(%x) {limit=[5,8], start=[0,0], stride=[2,1]} : f32[3,8]
    %b = slice(%x) {limit=[6,8], start=[1,0], stride=[2,1]} : f32[3,8]
    %y = concat(%a, %b) {dim=0} : f32[6,8]
    return %y as "y"
  })");
  // Every third row is missing.
  ExpectSameConcats(R"(graph g {
    %x = data : f32[9,8]
    %a = slice(%x) {limit=[7,8], start=[0,0], stride=[3,1]} : f32[3,8]
    %b = slice(%x) {limit=[8,8], start=[1,0], stride=[3,1]} : f32[3,8]
    %y = concat(%a, %b) {dim=1} : f32[3,16]
    return %y as "y"
  })");
}

TEST(RewriteConcats, TakesFuel) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[9]
    %a = slice(%x) {limit=[3], start=[0], stride=[1]} : f32[3]
    %b = slice(%x) {limit=[9], start=[3], stride=[1]} : f32[6]
    %c = concat(%a, %b) {dim=0} : f32[9]
    return %c as "y"
  })");
  const test::BareTarget target;
  PassOptions options;
  options.fuel["rewrite_concats"] = 0;
  PassContext context(target, options);
  EXPECT_FALSE(RewriteConcats(*graph, context));
}

}  // namespace
}  // namespace fusor::passes
