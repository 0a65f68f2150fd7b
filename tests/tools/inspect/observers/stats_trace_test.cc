#include "tools/inspect/observers/stats_trace.h"

#include <gmock/gmock.h>

#include <cmath>

#include "ir/support/error.h"
#include "tests/testing/damage.h"

namespace fusor::inspect {
namespace {

using ::testing::HasSubstr;

TraceEntry Entry(const std::string& name, std::vector<double> values) {
  const ir::TensorType type{
      ir::DType::kF32, {static_cast<int64_t>(values.size())}, {}};
  return {0, 1, name, "fusion", "layer1", StatsOf({type, std::move(values)})};
}

Trace MakeTrace(std::vector<TraceEntry> entries) {
  return {"net", "cpu-avx2", std::move(entries)};
}

std::string Text(const Trace& trace) {
  std::string text = TraceHeader(trace.program, trace.target) + "\n";
  for (const TraceEntry& entry : trace.entries) text += TraceLine(entry) + "\n";
  return text;
}

TEST(StatsTraceTest, StatisticsCoverFiniteElements) {
  const TensorStats stats = Entry("x", {1, -2, NAN, 4, INFINITY}).stats;
  EXPECT_EQ(stats.count, 5);
  EXPECT_EQ(stats.non_finite, 2);
  EXPECT_EQ(stats.min, -2);
  EXPECT_EQ(stats.max, 4);
  EXPECT_EQ(stats.mean, 1);
  const TensorStats none = Entry("x", {NAN}).stats;
  EXPECT_FALSE(none.min.has_value() || none.max.has_value() || none.mean);
}

TEST(StatsTraceTest, ChecksumIgnoresTheLayout) {
  ir::Tensor tensor{{ir::DType::kF32, {2, 3}, {}}, {1, 2, 3, 4, 5, 6}};
  const TensorStats row_major = StatsOf(tensor);
  tensor.type.layout.order = {1, 0};
  EXPECT_EQ(StatsOf(tensor), row_major);
  tensor.data[3] = 4.5;
  EXPECT_NE(StatsOf(tensor).checksum, row_major.checksum);
}

TEST(StatsTraceTest, LinesReadBackAsTheyWere) {
  const Trace trace =
      MakeTrace({Entry("a", {0.1, 1e-30}), Entry("b \"quoted\"", {NAN}),
                 Entry("c", {2})});
  const Trace read = ParseTrace(Text(trace), "memory");
  EXPECT_EQ(read.program, "net");
  EXPECT_EQ(read.target, "cpu-avx2");
  EXPECT_EQ(read.entries, trace.entries);
}

TEST(StatsTraceTest, MalformedTracesGetOneLineWithTheirPlace) {
  const std::string good = Text(MakeTrace({Entry("a", {1})}));
  std::string bad_sum = good;
  bad_sum.replace(bad_sum.find("\"checksum\":\"") + 12, 4, "wxyz");
  std::string bad_source = good;
  bad_source.insert(bad_source.rfind('}'), ",\"source\":\"model.cc\"");
  std::string huge_count = good;
  huge_count.insert(huge_count.find("\"count\":") + 8, "1e300, \"c\":");
  for (const auto& [text, expected] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "t: empty trace"},
           {huge_count, "t:2: expected"},
           {bad_source, "t:2: expected"},
           {"{}\n", "t:1: expected a line written by --stats-trace"},
           {"no json\n", "t:1: expected a line written by --stats-trace"},
           {good + "{\"run\":0}\n", "t:3: expected"},
           {good.substr(0, good.size() - 10), "t:2: expected"},
           {bad_sum, "t:2: expected"},
           {"{\"fusor_stats_trace\":9}\n", "t: trace of another version"}}) {
    try {
      ParseTrace(text, "t");
      ADD_FAILURE() << "no error for " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
}

TEST(StatsTraceTest, FirstDivergenceIsTheFirstInTheOrderOfTheFirstTrace) {
  const Trace a = MakeTrace({Entry("x", {1, 2}), Entry("only", {0}),
                             Entry("y", {3}), Entry("z", {4})});
  const Trace b =
      MakeTrace({Entry("z", {5}), Entry("y", {3.5}), Entry("x", {1, 2})});
  const Divergence divergence = FirstDivergence(a, b, 0);
  ASSERT_TRUE(divergence.a.has_value());
  EXPECT_EQ(divergence.a->name, "y");
  EXPECT_EQ(divergence.b->stats.mean, 3.5);
  EXPECT_EQ(divergence.what, "mean 3 and 3.5");
  EXPECT_EQ(divergence.values, 3);
  EXPECT_EQ(divergence.different, 2);
  EXPECT_EQ(divergence.only_a, 1);
  EXPECT_EQ(divergence.only_b, 0);
  EXPECT_FALSE(FirstDivergence(a, a, 0).a.has_value());
}

TEST(StatsTraceTest, ToleranceIsRelativeToTheLargestElement) {
  const Trace a = MakeTrace({Entry("x", {100, 0.5})});
  const Trace b = MakeTrace({Entry("x", {100, 0.6})});
  EXPECT_TRUE(FirstDivergence(a, b, 1e-4).a.has_value());
  EXPECT_FALSE(FirstDivergence(a, b, 1e-2).a.has_value());
}

TEST(StatsTraceTest, ChecksumsDecideIfStatisticsAgree) {
  const Trace a = MakeTrace({Entry("x", {1, 2, 3})});
  const Trace b = MakeTrace({Entry("x", {3, 2, 1})});
  EXPECT_THAT(FirstDivergence(a, b, 0).what, HasSubstr("checksum"));
  EXPECT_FALSE(FirstDivergence(a, b, 1e-6).a.has_value());
}

TEST(StatsTraceTest, NonFiniteElementsDivergeWhateverTheTolerance) {
  const Trace a = MakeTrace({Entry("x", {1, 1})});
  const Trace b = MakeTrace({Entry("x", {1, NAN})});
  EXPECT_EQ(FirstDivergence(a, b, 1).what, "0 and 1 non-finite elements");
}

TEST(StatsTraceTest, TracesOfOtherProgramsCannotBeCompared) {
  const Trace a = MakeTrace({Entry("x", {1})});
  Trace other_name = a, other_size = a;
  other_name.program = "other";
  Trace input = a;
  input.entries[0].step = -1;
  other_size.entries[0] = Entry("x", {1, 2});
  for (const auto& [first, second, expected] :
       std::vector<std::tuple<Trace, Trace, std::string>>{
           {a, MakeTrace({Entry("y", {1})}), "no value in common"},
           {a, other_name, "different programs: " + a.program + " and other"},
           {input, other_size, "input %x has 1 and 2 elements"}}) {
    try {
      FirstDivergence(first, second, 0);
      ADD_FAILURE() << expected;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGraph);
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
}

TEST(StatsTraceTest, CorruptTracesAreReadOrRejected) {
  const std::string whole =
      Text(MakeTrace({Entry("a", {0.1, 1e-30}), Entry("b", {NAN})}));
  const auto counts =
      test::ReadDamaged(whole, 2000, ErrorCode::kUsage,
                        [](const std::string& text) { ParseTrace(text, "t"); });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.rejected, 1000);
}

}  // namespace
}  // namespace fusor::inspect
