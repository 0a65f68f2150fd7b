#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/inspect/report/memory_report.h"

namespace fusor::inspect {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

codegen::Buffer Temporary(int64_t offset, int64_t bytes,
                          const std::string& name) {
  return {.arena = 1,
          .offset = offset,
          .bytes = bytes,
          .type = {ir::DType::kU8, {bytes}, {}},
          .name = name,
          .location = "at " + name};
}

codegen::Step Using(std::vector<int> args) {
  return {.args = std::move(args), .location = "here", .op_class = "op"};
}

// w (state) -> a -> b -> c. b is stored over a, and c takes another 128 bytes.
codegen::Plan ThreeSteps() {
  codegen::Plan plan;
  plan.arenas = {{"state", codegen::ArenaKind::kState, 64},
                 {"temporary", codegen::ArenaKind::kTemporary, 256}};
  plan.buffers = {{.arena = 0, .bytes = 64, .name = "w"},
                  Temporary(0, 64, "a"),
                  Temporary(0, 64, "b"),
                  Temporary(64, 100, "c"),
                  Temporary(192, 64, "unused")};
  plan.steps = {Using({0, 1}), Using({1, 2}), Using({2, 3})};
  plan.peak_bytes = 192;
  plan.lower_bound_bytes = 192;
  return plan;
}

TEST(MemoryTimeline, CountsInPlaceStorageOnce) {
  const MemoryTimeline timeline = TimelineOf(ThreeSteps());
  EXPECT_THAT(timeline.live, ElementsAre(64, 64, 64 + 128));
  EXPECT_EQ(timeline.peak_step, 2);
}

TEST(MemoryTimeline, ListsLiveBuffersLargestFirst) {
  const codegen::Plan plan = ThreeSteps();
  const MemoryTimeline timeline = TimelineOf(plan);
  std::vector<std::string> names;
  for (size_t i : timeline.LiveAt(plan, 2)) {
    names.push_back(plan.buffers[timeline.entries[i].buffer].name);
  }
  EXPECT_THAT(names, ElementsAre("c", "b"));
}

TEST(MemoryTimeline, ASpanCountsAsItsMembers) {
  codegen::Plan plan = ThreeSteps();
  codegen::Buffer span = Temporary(0, 192, "span");
  span.members = {2, 3};
  plan.buffers.push_back(span);
  plan.steps.push_back(Using({5}));
  const MemoryTimeline timeline = TimelineOf(plan);
  EXPECT_THAT(timeline.live, ElementsAre(64, 64, 192, 192));
  EXPECT_EQ(timeline.entries.size(), 3);
}

TEST(MemoryTimeline, FindsWhatIsLiveOnlyAtOnePeak) {
  codegen::Plan plan = ThreeSteps();
  for (size_t s = 0; s < 3; ++s) plan.steps[s].name = "v" + std::to_string(s);
  codegen::Plan other = ThreeSteps();
  other.buffers[3].name = "other";
  const std::vector<PeakBuffer> only = LiveOnlyAtPeakOf(plan, other);
  ASSERT_EQ(only.size(), 1);
  EXPECT_EQ(only[0].name, "c");
  EXPECT_EQ(only[0].location, "at c");
  EXPECT_EQ(only[0].bytes, 100);
  EXPECT_EQ(only[0].first_step, "op %v2");
  EXPECT_EQ(only[0].last_step, "op %v2");
  EXPECT_THAT(LiveOnlyAtPeakOf(plan, ThreeSteps()), IsEmpty());
  EXPECT_EQ(LiveOnlyAtPeakOf(plan, codegen::Plan()).size(), 2);
}

TEST(MemoryTimeline, APlanWithoutStepsHasNoPeak) {
  const MemoryTimeline timeline = TimelineOf({});
  EXPECT_THAT(timeline.live, IsEmpty());
  EXPECT_EQ(timeline.peak_step, -1);
}

TEST(MemoryTimeline, TheViewHoldsEveryBufferWithItsLiveRange) {
  const nlohmann::json view = TimelineView(ThreeSteps(), "v");
  EXPECT_EQ(view["name"], "v");
  EXPECT_EQ(view["peak"], 192);
  EXPECT_EQ(view["steps"][0], "op here");
  ASSERT_EQ(view["buffers"].size(), 3);
  EXPECT_EQ(view["buffers"][1], (nlohmann::json{{"name", "b"},
                                                {"loc", "at b"},
                                                {"bytes", 64},
                                                {"first", 1},
                                                {"last", 2},
                                                {"offset", 0},
                                                {"source", ""}}));
}

}  // namespace
}  // namespace fusor::inspect
