#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/verifier.h"
#include "passes/passes.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

constexpr char kForward[] = R"(graph g {{
      %y = data : f16[2,8,8,8]{{acdb}}
      %scale = data : f32[8]
      %wide = cast(%y) {{dtype="f32"}} : f32[2,8,8,8]{{acdb}} @"bn1"
      %a = broadcast(%scale) {{dims=[1], shape=[2,8,8,8]}} : f32[2,8,8,8]{{acdb}}
      %ay = mul(%wide, %a) : f32[2,8,8,8]{{acdb}} @"bn1"
      %n = relu(%ay) : f32[2,8,8,8]{{acdb}} @"bn1"
      %z = cast(%n) {{dtype="f16"}} : f16[2,8,8,8]{{acdb}} @"bn1"
      %p, %i = max_pool(%z) {{pad=[1,1], stride=[2,2], window=[3,3]}}
             : f16[2,8,4,4]{{acdb}}, u8[2,8,4,4]{{acdb}} @"maxpool"
      %ym = max_pool_gather(%y, %i) {{pad=[1,1], stride=[2,2], window=[3,3]}}
          : f16[2,8,4,4]{{acdb}} @"maxpool"
      return %p as "p", %i as "i", %ym as "ym"{}
    }})";

constexpr char kBackward[] = R"(graph g {{
      %y = data : f16[2,8,8,8]{{acdb}}
      %dp = data : f16[2,8,4,4]{{acdb}}
      %i = data : u8[2,8,4,4]{{acdb}}
      %scale = data : f32[8]
      %shift = data : f32[8]
      %dz = max_pool_grad(%dp, %i)
            {{input_shape=[2,8,8,8], pad=[1,1], stride=[2,2], window=[3,3]}}
          : f16[2,8,8,8]{{acdb}} @"maxpool"
      %g = cast(%dz) {{dtype="f32"}} : f32[2,8,8,8]{{acdb}} @"bn1"
      %wide = cast(%y) {{dtype="f32"}} : f32[2,8,8,8]{{acdb}} @"bn1"
      %zeros = constant() {{dtype="f32", shape=[2,8,8,8], value=[0.0]}}
             : f32[2,8,8,8]{{acdb}}
      %on = compare(%wide, %zeros) {{direction="gt"}}
          : bool[2,8,8,8]{{acdb}} @"bn1"
      %masked = select(%on, %g, %zeros) : f32[2,8,8,8]{{acdb}} @"bn1"
      %a = broadcast(%scale) {{dims=[1], shape=[2,8,8,8]}} : f32[2,8,8,8]{{acdb}}
      %b = broadcast({0}) {{dims=[1], shape=[2,8,8,8]}} : f32[2,8,8,8]{{acdb}}
      %ga = mul(%masked, %a) : f32[2,8,8,8]{{acdb}} @"bn1"
      %gb = add(%ga, %b) : f32[2,8,8,8]{{acdb}} @"bn1"
      %dy = cast(%gb) {{dtype="f16"}} : f16[2,8,8,8]{{acdb}} @"bn1"
      return %dy as "dy"{1}
    }})";

std::string Forward(const char* outputs = "") {
  return fmt::format(kForward, outputs);
}

std::string Backward(const char* shift = "%shift", const char* outputs = "") {
  return fmt::format(kBackward, shift, outputs);
}

class FusePoolTest : public testing::Test {
 protected:
  void ExpectKept(const std::string& text, const std::string& reason) {
    const auto graph = test::ParseOrDie(text);
    PassContext context(target_, {});
    EXPECT_FALSE(FusePool(*graph, context));
    test::ExpectSameGraph(text, *graph);
    ASSERT_EQ(context.decisions().size(), 1);
    EXPECT_FALSE(context.decisions()[0].accepted);
    EXPECT_EQ(context.decisions()[0].reason, reason);
  }

  test::ChannelsLastCompiler target_{"nvidia-h200"};
};

TEST_F(FusePoolTest, TakesWhatLeadsToAPoolAndTheGathersBesideIt) {
  const auto graph = test::ParseOrDie(Forward());
  PassContext context(target_, {});
  EXPECT_TRUE(FusePool(*graph, context));
  ir::Verify(*graph);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f16[2,8,8,8]{acdb}
      %scale = data : f32[8]
      %p, %i, %ym = fusion(%y, %scale) {rounding="fast"}
          : f16[2,8,4,4]{acdb}, u8[2,8,4,4]{acdb}, f16[2,8,4,4]{acdb}
          @"maxpool" {
        %y = data : f16[2,8,8,8]{acdb}
        %scale = data : f32[8]
        %wide = cast(%y) {dtype="f32"} : f32[2,8,8,8]{acdb} @"bn1"
        %a = broadcast(%scale) {dims=[1], shape=[2,8,8,8]}
           : f32[2,8,8,8]{acdb}
        %ay = mul(%wide, %a) : f32[2,8,8,8]{acdb} @"bn1"
        %n = relu(%ay) : f32[2,8,8,8]{acdb} @"bn1"
        %z = cast(%n) {dtype="f16"} : f16[2,8,8,8]{acdb} @"bn1"
        %p, %i = max_pool(%z) {pad=[1,1], stride=[2,2], window=[3,3]}
               : f16[2,8,4,4]{acdb}, u8[2,8,4,4]{acdb} @"maxpool"
        %ym = max_pool_gather(%y, %i) {pad=[1,1], stride=[2,2], window=[3,3]}
            : f16[2,8,4,4]{acdb} @"maxpool"
        return %p as "p", %i as "i", %ym as "ym"
      }
      return %p as "p", %i as "i", %ym as "ym"
    })",
                        *graph);
  EXPECT_EQ(context.counters().at("pool_prologues"), 1);
  ASSERT_EQ(context.decisions().size(), 1);
  EXPECT_EQ(context.decisions()[0].reason,
            "one kernel with producers, gathers");
}

TEST_F(FusePoolTest, TakesWhatAloneReadsAGradient) {
  const auto graph = test::ParseOrDie(Backward());
  PassContext context(target_, {});
  EXPECT_TRUE(FusePool(*graph, context));
  ir::Verify(*graph);
  test::ExpectSameGraph(R"(graph g {
      %y = data : f16[2,8,8,8]{acdb}
      %dp = data : f16[2,8,4,4]{acdb}
      %i = data : u8[2,8,4,4]{acdb}
      %scale = data : f32[8]
      %shift = data : f32[8]
      %dy = fusion(%dp, %i, %y, %scale, %shift) {rounding="fast"}
          : f16[2,8,8,8]{acdb} @"maxpool" {
        %dp = data : f16[2,8,4,4]{acdb}
        %i = data : u8[2,8,4,4]{acdb}
        %y = data : f16[2,8,8,8]{acdb}
        %scale = data : f32[8]
        %shift = data : f32[8]
        %dz = max_pool_grad(%dp, %i)
              {input_shape=[2,8,8,8], pad=[1,1], stride=[2,2], window=[3,3]}
            : f16[2,8,8,8]{acdb} @"maxpool"
        %g = cast(%dz) {dtype="f32"} : f32[2,8,8,8]{acdb} @"bn1"
        %wide = cast(%y) {dtype="f32"} : f32[2,8,8,8]{acdb} @"bn1"
        %zeros = constant() {dtype="f32", shape=[2,8,8,8], value=[0.0]}
               : f32[2,8,8,8]{acdb}
        %on = compare(%wide, %zeros) {direction="gt"}
            : bool[2,8,8,8]{acdb} @"bn1"
        %masked = select(%on, %g, %zeros) : f32[2,8,8,8]{acdb} @"bn1"
        %a = broadcast(%scale) {dims=[1], shape=[2,8,8,8]}
           : f32[2,8,8,8]{acdb}
        %b = broadcast(%shift) {dims=[1], shape=[2,8,8,8]}
           : f32[2,8,8,8]{acdb}
        %ga = mul(%masked, %a) : f32[2,8,8,8]{acdb} @"bn1"
        %gb = add(%ga, %b) : f32[2,8,8,8]{acdb} @"bn1"
        %dy = cast(%gb) {dtype="f16"} : f16[2,8,8,8]{acdb} @"bn1"
        return %dy as "dy"
      }
      return %dy as "dy"
    })",
                        *graph);
  EXPECT_EQ(context.counters().at("pool_epilogues"), 1);
}

TEST_F(FusePoolTest, LeavesWhatOthersRead) {
  const auto graph = test::ParseOrDie(Forward(", %z as \"z\""));
  PassContext context(target_, {});
  EXPECT_TRUE(FusePool(*graph, context));  // only with its gather
  EXPECT_EQ(context.counters().at("pool_prologues"), 0);
  EXPECT_EQ(context.decisions()[0].reason, "one kernel with gathers");
  std::string sum = Backward("%sum");
  const std::string reader = "      %b = broadcast";
  sum.insert(sum.find(reader),
             "      %sum = reduce(%g) {dims=[0,2,3], kind=\"sum\"} : f32[8]\n");
  const auto summed = test::ParseOrDie(sum);
  PassContext other(target_, {});
  EXPECT_FALSE(FusePool(*summed, other));  // two nodes read its cast
  EXPECT_TRUE(other.decisions().empty());
}

TEST_F(FusePoolTest, LeavesMasksOfBits) {
  std::string text = Backward();
  const std::string mask =
      "%on = compare(%wide, %zeros) {direction=\"gt\"}\n"
      "          : bool[2,8,8,8]{acdb} @\"bn1\"\n";
  text.erase(text.find(mask), mask.size());
  text.insert(text.find("%dp = data"),
              "%on = data : bool[2,8,8,8]{acdb}\n      ");
  text.erase(text.find("      %wide"),
             text.find("      %zeros") - text.find("      %wide"));
  ExpectKept(text, "%on is a bitmask");
}

TEST_F(FusePoolTest, StopsWithItsFuel) {
  PassOptions options;
  options.fuel["fuse_pool"] = 0;
  PassContext context(target_, options);
  const auto graph = test::ParseOrDie(Forward());
  EXPECT_FALSE(FusePool(*graph, context));
  test::ExpectSameGraph(Forward(), *graph);
}

}  // namespace
}  // namespace fusor::passes
