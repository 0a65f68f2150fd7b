// Layouts for a library that computes 1x1 convolutions only with channels last,
// and all others only row-major.

#include <gtest/gtest.h>

#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/layout_library.h"

namespace fusor::passes {
namespace {

std::vector<test::LayoutLibrary::Candidate> LastForPointwise(
    const ir::Node& conv) {
  const bool pointwise = conv.input(1)->type().shape[2] == 1;
  return {{"only", pointwise ? "acdb" : ""}};
}

void Expect(std::string_view before, std::string_view after,
            const test::LayoutLibrary::Offer& offer = LastForPointwise) {
  const test::LayoutLibrary target(offer);
  const PassOptions options;
  auto graph = test::ParseOrDie(before);
  PassContext context(target, options);
  EXPECT_TRUE(AssignLayout(*graph, context));
  ir::Verify(*graph);
  test::ExpectSameGraph(after, *graph);
  PassContext again(target, options);
  EXPECT_FALSE(AssignLayout(*graph, again));
}

// The later of two normalisations is the main branch. If the sum is fused with
// both, it has the main branch's layout.
TEST(AssignLayoutTest, ASumOfNormalisationsHasTheLayoutThatOneOpWouldHave) {
  constexpr char kConvolutions[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,3,3]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %a = conv2d(%x, %u) {pad=[1,1]} : f32[1,2,4,4] @"a"
    %b = conv2d(%x, %v) : f32[1,2,4,4] @"b"
)";
  constexpr char kLaidOut[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,3,3]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %a = conv2d(%x, %u) {algorithm="direct", pad=[1,1]} : f32[1,2,4,4] @"a"
    %copy = copy(%x) {layout="acdb"} : f32[1,2,4,4]{acdb} @"b"
    %b = conv2d(%copy, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"b"
    %copy_1 = copy(%a) {layout="acdb"} : f32[1,2,4,4]{acdb} @"n"
)";
  Expect(std::string(kConvolutions) + R"(
    %y, %m, %s, %m2, %s2, %mask = batch_norm_train(%b, %g, %h, %a, %g, %h) {relu=true, residual="norm"} : f32[1,2,4,4], f32[2], f32[2], f32[2], f32[2], bool[1,2,4,4] @"n"
    return %y as "y", %m as "m", %m2 as "m2"
  })",
         std::string(kLaidOut) + R"(
    %y, %m, %s, %m2, %s2, %mask = batch_norm_train(%b, %g, %h, %copy_1, %g, %h) {relu=true, residual="norm"} : f32[1,2,4,4]{acdb}, f32[2], f32[2], f32[2], f32[2], bool[1,2,4,4]{acdb} @"n"
    return %y as "y", %m as "m", %m2 as "m2"
  })");
  Expect(std::string(kConvolutions) + R"(
    %n2, %m2, %s2 = batch_norm_train(%a, %g, %h) : f32[1,2,4,4], f32[2], f32[2] @"n"
    %n, %m, %s = batch_norm_train(%b, %g, %h) : f32[1,2,4,4], f32[2], f32[2] @"n"
    %sum = add(%n2, %n) : f32[1,2,4,4] @"n"
    %y = relu(%sum) : f32[1,2,4,4] @"n"
    return %y as "y", %m as "m", %m2 as "m2"
  })",
         std::string(kLaidOut) + R"(
    %n2, %m2, %s2 = batch_norm_train(%copy_1, %g, %h) : f32[1,2,4,4]{acdb}, f32[2], f32[2] @"n"
    %n, %m, %s = batch_norm_train(%b, %g, %h) : f32[1,2,4,4]{acdb}, f32[2], f32[2] @"n"
    %sum = add(%n2, %n) : f32[1,2,4,4]{acdb} @"n"
    %y = relu(%sum) : f32[1,2,4,4]{acdb} @"n"
    return %y as "y", %m as "m", %m2 as "m2"
  })");
}

// A matmul fixes the layout of its operand before the operand's source gets
// another layout.
TEST(AssignLayoutTest, WhatAReaderReliesOnStaysAsItIs) {
  Expect(R"(graph g {
    %x = data : f32[1,2,4,4]
    %m = data : f32[1,2,4,3]
    %v = weight : f32[2,2,1,1]
    %b = conv2d(%x, %v) : f32[1,2,4,4] @"b"
    %i = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]
    %n = neg(%i) : f32[1,2,4,4] @"n"
    %a = abs(%n) : f32[1,2,4,4] @"a"
    %y = mul(%b, %i) : f32[1,2,4,4]
    %z = matmul(%a, %m) : f32[1,2,4,3] @"z"
    return %y as "y", %z as "z"
  })",
         R"(graph g {
    %x = data : f32[1,2,4,4]
    %m = data : f32[1,2,4,3]
    %v = weight : f32[2,2,1,1]
    %copy = copy(%x) {layout="acdb"} : f32[1,2,4,4]{acdb} @"b"
    %b = conv2d(%copy, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"b"
    %i = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]{acdb}
    %n = neg(%i) : f32[1,2,4,4]{acdb} @"n"
    %copy_1 = copy(%n) {layout=""} : f32[1,2,4,4] @"a"
    %a = abs(%copy_1) : f32[1,2,4,4] @"a"
    %y = mul(%b, %i) : f32[1,2,4,4]{acdb}
    %z = matmul(%a, %m) : f32[1,2,4,3] @"z"
    return %y as "y", %z as "z"
  })");
}

// The convolution fixes the layout of %d, and mul(%d, %c) then that of %c,
// which earlier nodes read.
TEST(AssignLayoutTest, ALayoutReachesReadersOfReaders) {
  Expect(R"(graph g {
    %v = weight : f32[2,2,1,1]
    %c = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]
    %d = iota() {dim=2, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]
    %a = abs(%c) : f32[1,2,4,4]
    %p = add(%a, %c) : f32[1,2,4,4]
    %q = mul(%d, %c) : f32[1,2,4,4]
    %z = conv2d(%d, %v) : f32[1,2,4,4] @"z"
    return %p as "p", %q as "q", %z as "z"
  })",
         R"(graph g {
    %v = weight : f32[2,2,1,1]
    %c = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]{acdb}
    %d = iota() {dim=2, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]{acdb}
    %a = abs(%c) : f32[1,2,4,4]{acdb}
    %p = add(%a, %c) : f32[1,2,4,4]{acdb}
    %q = mul(%d, %c) : f32[1,2,4,4]{acdb}
    %z = conv2d(%d, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"z"
    return %p as "p", %q as "q", %z as "z"
  })");
}

// A convolution's result and a row-major tensor, of the shape of a weight, read
// the same constant and the same broadcast. Neither is copied.
TEST(AssignLayoutTest, ASharedNumberHasTheLayoutOfEachReader) {
  Expect(R"(graph g {
    %s = data : f32[]
    %x = data : f32[1,2,3,4]
    %u = weight : f32[1,2,4,4]
    %v = weight : f32[2,2,1,1]
    %half = constant() {dtype="f32", shape=[1,2,4,4], value=[0.5]} : f32[1,2,4,4]
    %all = broadcast(%s) {dims=[], shape=[1,2,4,4]} : f32[1,2,4,4]
    %z = conv2d(%u, %v) : f32[1,2,4,4] @"z"
    %a = mul(%half, %z) : f32[1,2,4,4]
    %b = add(%all, %a) : f32[1,2,4,4]
    %y = pad(%x) {high=[0,0,1,0], interior=[0,0,0,0], low=[0,0,0,0]} : f32[1,2,4,4]
    %e = mul(%half, %y) : f32[1,2,4,4]
    %f = add(%all, %e) : f32[1,2,4,4]
    return %b as "b", %f as "f"
  })",
         R"(graph g {
    %s = data : f32[]
    %x = data : f32[1,2,3,4]
    %u = weight : f32[1,2,4,4]{acdb}
    %v = weight : f32[2,2,1,1]
    %half = constant() {dtype="f32", shape=[1,2,4,4], value=[0.5]} : f32[1,2,4,4]{acdb}
    %all = broadcast(%s) {dims=[], shape=[1,2,4,4]} : f32[1,2,4,4]{acdb}
    %z = conv2d(%u, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"z"
    %a = mul(%half, %z) : f32[1,2,4,4]{acdb}
    %b = add(%all, %a) : f32[1,2,4,4]{acdb}
    %y = pad(%x) {high=[0,0,1,0], interior=[0,0,0,0], low=[0,0,0,0]} : f32[1,2,4,4]
    %constant = constant() {dtype="f32", shape=[1,2,4,4], value=[0.5]} : f32[1,2,4,4]
    %e = mul(%constant, %y) : f32[1,2,4,4]
    %broadcast = broadcast(%s) {dims=[], shape=[1,2,4,4]} : f32[1,2,4,4]
    %f = add(%broadcast, %e) : f32[1,2,4,4]
    return %b as "b", %f as "f"
  })");
}

// The convolution fixes the layout of %c after the all-reduce has one.
TEST(AssignLayoutTest, AnAllReduceHasTheLayoutOfItsOperand) {
  Expect(R"(graph g {
    %v = weight : f32[2,2,1,1]
    %c = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]
    %a = abs(%c) : f32[1,2,4,4]
    %r = all_reduce(%a) : f32[1,2,4,4]
    %z = conv2d(%c, %v) : f32[1,2,4,4] @"z"
    return %r as "r", %z as "z"
  })",
         R"(graph g {
    %v = weight : f32[2,2,1,1]
    %c = iota() {dim=1, dtype="f32", shape=[1,2,4,4]} : f32[1,2,4,4]{acdb}
    %a = abs(%c) : f32[1,2,4,4]{acdb}
    %copy = copy(%a) {layout=""} : f32[1,2,4,4]
    %r = all_reduce(%copy) : f32[1,2,4,4]
    %z = conv2d(%c, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"z"
    return %r as "r", %z as "z"
  })");
}

// The upstream gradient is row-major, but the normalised tensor has channels
// last.
TEST(AssignLayoutTest, TheGradientOfANormalisationHasTheLayoutOfItsOperand) {
  Expect(R"(graph g {
    %x = data : f32[1,2,4,4]
    %d = data : f32[1,2,4,4]
    %u = weight : f32[2,2,3,3]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %b = conv2d(%x, %v) : f32[1,2,4,4] @"b"
    %y, %m, %s = batch_norm_train(%b, %g, %h) : f32[1,2,4,4], f32[2], f32[2] @"n"
    %dy = conv2d_grad_input(%d, %u) {input_shape=[1,2,4,4], pad=[1,1]} : f32[1,2,4,4] @"d"
    %dx, %dg, %dh = batch_norm_grad(%dy, %b, %g, %h, %m, %s) : f32[1,2,4,4], f32[2], f32[2] @"n"
    return %y as "y", %dx as "dx"
  })",
         R"(graph g {
    %x = data : f32[1,2,4,4]
    %d = data : f32[1,2,4,4]
    %u = weight : f32[2,2,3,3]
    %v = weight : f32[2,2,1,1]
    %g = norm_scale : f32[2]
    %h = norm_shift : f32[2]
    %copy = copy(%x) {layout="acdb"} : f32[1,2,4,4]{acdb} @"b"
    %b = conv2d(%copy, %v) {algorithm="direct"} : f32[1,2,4,4]{acdb} @"b"
    %y, %m, %s = batch_norm_train(%b, %g, %h) : f32[1,2,4,4]{acdb}, f32[2], f32[2] @"n"
    %dy = conv2d_grad_input(%d, %u) {algorithm="direct", input_shape=[1,2,4,4], pad=[1,1]} : f32[1,2,4,4] @"d"
    %copy_1 = copy(%dy) {layout="acdb"} : f32[1,2,4,4]{acdb} @"n"
    %dx, %dg, %dh = batch_norm_grad(%copy_1, %b, %g, %h, %m, %s) : f32[1,2,4,4]{acdb}, f32[2], f32[2] @"n"
    return %y as "y", %dx as "dx"
  })");
}

std::vector<test::LayoutLibrary::Candidate> Blocked(const ir::Node&) {
  return {{"only", "aBcd4b"}};
}

TEST(AssignLayoutTest, PartsOfWholeTilesAreJoinedAndReadAsTheyAre) {
  Expect(R"(graph g {
    %x = data : f32[1,8,4,4]
    %u = weight : f32[4,8,1,1]
    %v = weight : f32[8,12,1,1]
    %a = conv2d(%x, %u) : f32[1,4,4,4] @"a"
    %joined = concat(%a, %x) {dim=1} : f32[1,12,4,4] @"c"
    %b = conv2d(%joined, %v) : f32[1,8,4,4] @"b"
    %part = slice(%b) {limit=[1,8,4,4], start=[0,4,0,0], stride=[1,1,1,1]} : f32[1,4,4,4] @"s"
    %sum = add(%part, %a) : f32[1,4,4,4] @"d"
    return %sum as "sum"
  })",
         R"(graph g {
    %x = data : f32[1,8,4,4]
    %u = weight : f32[4,8,1,1]
    %v = weight : f32[8,12,1,1]
    %copy = copy(%x) {layout="aBcd4b"} : f32[1,8,4,4]{aBcd4b} @"a"
    %a = conv2d(%copy, %u) {algorithm="direct"} : f32[1,4,4,4]{aBcd4b} @"a"
    %joined = concat(%a, %x) {dim=1} : f32[1,12,4,4]{aBcd4b} @"c"
    %b = conv2d(%joined, %v) {algorithm="direct"} : f32[1,8,4,4]{aBcd4b} @"b"
    %part = slice(%b) {limit=[1,8,4,4], start=[0,4,0,0], stride=[1,1,1,1]} : f32[1,4,4,4]{aBcd4b} @"s"
    %sum = add(%part, %a) : f32[1,4,4,4]{aBcd4b} @"d"
    return %sum as "sum"
  })",
         Blocked);
}

TEST(AssignLayoutTest, PartsOfTilesAreRowMajor) {
  Expect(R"(graph g {
    %x = data : f32[1,4,4,4]
    %y = data : f32[1,2,4,4]
    %u = weight : f32[4,4,1,1]
    %a = conv2d(%x, %u) : f32[1,4,4,4] @"a"
    %joined = concat(%a, %y) {dim=1} : f32[1,6,4,4] @"c"
    %part = slice(%a) {limit=[1,3,4,4], start=[0,1,0,0], stride=[1,1,1,1]} : f32[1,2,4,4] @"s"
    return %joined as "joined", %part as "part"
  })",
         R"(graph g {
    %x = data : f32[1,4,4,4]
    %y = data : f32[1,2,4,4]
    %u = weight : f32[4,4,1,1]
    %copy = copy(%x) {layout="aBcd4b"} : f32[1,4,4,4]{aBcd4b} @"a"
    %a = conv2d(%copy, %u) {algorithm="direct"} : f32[1,4,4,4]{aBcd4b} @"a"
    %joined = concat(%a, %y) {dim=1} : f32[1,6,4,4] @"c"
    %rows = copy(%a) {layout=""} : f32[1,4,4,4] @"s"
    %part = slice(%rows) {limit=[1,3,4,4], start=[0,1,0,0], stride=[1,1,1,1]} : f32[1,2,4,4] @"s"
    return %joined as "joined", %part as "part"
  })",
         Blocked);
}

}  // namespace
}  // namespace fusor::passes
