#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tools/inspect/report/memory_report.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// Three steps that do not fuse. %a is live while two of them run.
constexpr char kNetwork[] = R"(graph net {
  %x = data : f32[64,32]
  %w = weight : f32[64,32]
  %a = matmul(%x, %w) {transpose_b=true} : f32[64,64] @"first"
  %b = matmul(%a, %a) : f32[64,64] @"second"
  %c = matmul(%b, %a) : f32[64,64] @"third"
  return %c as "y"
})";

class MemoryMapTest : public ::testing::Test {
 protected:
  codegen::Plan PlanOf(const char* text) const {
    const auto graph = test::ParseOrDie(text);
    return codegen::BuildPlan(*graph, {}, compiler_);
  }

  // Returns the line of `text` that contains `part`.
  static std::string LineWith(const std::string& text, const std::string& part,
                              size_t from = 0) {
    const size_t at = text.find(part, from);
    if (at == std::string::npos) return "no " + part + " in\n" + text;
    const size_t start = text.rfind('\n', at) + 1;
    return text.substr(start, text.find('\n', at) - start);
  }

  test::FakeCompiler compiler_;
};

TEST_F(MemoryMapTest, ListsOffsetAndLiveRangeOfEachBuffer) {
  const std::string text = MemoryMap(PlanOf(kNetwork));
  const size_t buffers = text.find("buffers:");
  EXPECT_THAT(LineWith(text, "%x", buffers),
              MatchesRegex(" *b[0-9]+ +8192 bytes at +0 of input +always +%x "
                           "f32.64,32."));
  EXPECT_THAT(LineWith(text, "%a", buffers),
              MatchesRegex(" *b[0-9]+ +16384 bytes at +[0-9]+ of temporary "
                           "+s0..s2 +%a f32.64,64. @\"first\""));
  EXPECT_THAT(LineWith(text, "%w", buffers), HasSubstr("of state"));
}

TEST_F(MemoryMapTest, ListsWhatIsLiveAtThePeak) {
  const codegen::Plan plan = PlanOf(kNetwork);
  const std::string text = MemoryMap(plan);
  const std::string peak = text.substr(
      text.find("peak:"), text.find("buffers:") - text.find("peak:"));
  EXPECT_THAT(peak, HasSubstr("bytes live at s1 %b @\"second\""));
  EXPECT_THAT(peak, HasSubstr("%a"));
  EXPECT_THAT(peak, HasSubstr("%b"));
  EXPECT_THAT(peak, Not(HasSubstr("%x")));
  EXPECT_THAT(text, HasSubstr(std::to_string(plan.lower_bound_bytes) +
                              " bytes live at"));
}

TEST_F(MemoryMapTest, ScheduleShowsStepsInOrder) {
  const std::string text = ScheduleText(PlanOf(kNetwork));
  EXPECT_THAT(LineWith(text, "%a"),
              MatchesRegex("s0 .* 262144 matmul fake_matmul %a @\"first\""));
  EXPECT_LT(text.find("%a"), text.find("%b"));
  EXPECT_LT(text.find("%b"), text.find("%c"));
}

TEST_F(MemoryMapTest, APlanWithoutStepsHasNoPeak) {
  const std::string text = MemoryMap(
      PlanOf("graph net {\n  %x = data : f32[4]\n  return %x as \"y\"\n}"));
  EXPECT_THAT(text, HasSubstr("%x"));
}

}  // namespace
}  // namespace fusor::inspect
