#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

bool RunDropCollectives(ir::Graph& graph, int world_size = 1) {
  const test::BareTarget target;
  PassOptions options;
  options.world_size = world_size;
  PassContext context(target, options);
  return DropCollectives(graph, context);
}

void ExpectDropped(std::string_view before, std::string_view after) {
  const auto graph = test::ParseOrDie(before);
  EXPECT_TRUE(RunDropCollectives(*graph));
  test::ExpectSameGraph(after, *graph);
  EXPECT_FALSE(RunDropCollectives(*graph));
}

TEST(DropCollectivesTest, ASumOverOneRankIsItsOperand) {
  ExpectDropped(R"(graph g {
    %x = data : f32[4]
    %y = data : f32[2,3]
    %a, %b = all_reduce(%x, %y) : f32[4], f32[2,3]
    return %a as "a", %b as "b"
  })",
                R"(graph g {
    %x = data : f32[4]
    %y = data : f32[2,3]
    return %x as "a", %y as "b"
  })");
}

TEST(DropCollectivesTest, OneRankGathersItsOperand) {
  ExpectDropped(R"(graph g {
    %x = data : f32[4]
    %a = all_gather(%x) {ranks=1} : f32[1,4]
    return %a as "a"
  })",
                R"(graph g {
    %x = data : f32[4]
    %a = reshape(%x) {shape=[1,4]} : f32[1,4]
    return %a as "a"
  })");
}

// A shard is padded to 64 elements.
TEST(DropCollectivesTest, TheOnlyPartOfASumIsItsOperandAndZeros) {
  ExpectDropped(R"(graph g {
    %x = data : f32[2,3]
    %y = data : f32[8,8]
    %a, %b = reduce_scatter(%x, %y) {parts=1} : f32[64], f32[64]
    return %a as "a", %b as "b"
  })",
                R"(graph g {
    %x = data : f32[2,3]
    %y = data : f32[8,8]
    %f = reshape(%x) {shape=[6]} : f32[6]
    %a = pad(%f) {low=[0], high=[58], interior=[0]} : f32[64]
    %b = reshape(%y) {shape=[64]} : f32[64]
    return %a as "a", %b as "b"
  })");
}

TEST(DropCollectivesTest, SeveralRanksKeepTheirs) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %a = all_reduce(%x) : f32[4]
    return %a as "a"
  })");
  EXPECT_FALSE(RunDropCollectives(*graph, 2));
}

TEST(DropCollectivesTest, AGatherOfSeveralRanksIsAnErrorOnOne) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[4]
    %a = all_gather(%x) {ranks=2} : f32[2,4] @"fc"
    return %a as "a"
  })");
  EXPECT_THAT(
      [&] { RunDropCollectives(*graph); },
      testing::ThrowsMessage<Error>(testing::HasSubstr(
          "all_gather at fc: expected a collective of one rank, got several")));
}

}  // namespace
}  // namespace fusor::passes
