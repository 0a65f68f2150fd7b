#include "ir/target/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/support/error.h"
#include "tests/testing/damage.h"

namespace fusor::ir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kTiny = R"(
  name: "tiny"
  threads: 2
  vector_bytes: 32
  l1_bytes: 1024
  l2_bytes: 4096
  memory_gb_per_s: 10
  memory_gb_per_s_limit: 15
  peak_gflops_f32: 100
  peak_gflops_16: 200
  launch_overhead_ns: 500
)";

std::string TargetError(std::string_view text) {
  try {
    ParseTarget(text, "tiny.textproto");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    return e.what();
  }
  return "";
}

TEST(Target, EveryBuiltInDescriptionParsesUnderItsFileName) {
  EXPECT_THAT(TargetNames(),
              ElementsAre("cpu-amx", "cpu-avx2", "cpu-avx512", "nvidia-a100",
                          "nvidia-b200", "nvidia-h100", "nvidia-h200"));
  for (const std::string& name : TargetNames()) {
    EXPECT_EQ(FindTarget(name).name, name);
  }
}

TEST(Target, ChannelBlockIsTheFloatsOfAVector) {
  EXPECT_EQ(FindTarget("cpu-avx512").channel_block(), 16);
  EXPECT_EQ(FindTarget("cpu-avx2").channel_block(), 8);
  EXPECT_THROW(FindTarget("nvidia-h200").channel_block(), Error);
}

TEST(Target, ThreadsScaleArithmeticAndBandwidthUpToItsLimit) {
  const Target tiny = ParseTarget(kTiny);
  const Target half = WithThreads(tiny, 1);
  EXPECT_EQ(half.threads, 1);
  EXPECT_EQ(half.peak_gflops_f32, 50);
  EXPECT_EQ(half.peak_gflops_16, 100);
  EXPECT_EQ(half.memory_gb_per_s, 5);
  const Target eight = WithThreads(tiny, 8);
  EXPECT_EQ(eight.peak_gflops_f32, 400);
  EXPECT_EQ(eight.memory_gb_per_s, 15);
  EXPECT_EQ(WithThreads(tiny, 2), tiny);
}

TEST(Target, DefaultCpuIsABuiltInCpuWithAtLeastOneThread) {
  const Target target = DefaultCpuTarget();
  EXPECT_FALSE(target.simt);
  EXPECT_GE(target.threads, 1);
  const std::vector<std::string> names = TargetNames();
  EXPECT_EQ(std::count(names.begin(), names.end(), target.name), 1);
}

TEST(Target, UnknownNameIsAnsweredWithTheNearest) {
  try {
    FindTarget("nvidia-h20");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_THAT(e.what(), HasSubstr("did you mean nvidia-h200?"));
  }
}

TEST(ParseTarget, NamesFileLineAndColumnOfASyntaxError) {
  EXPECT_THAT(TargetError("name: \"x\"\nthreads: many\n"),
              HasSubstr("tiny.textproto:2:10: "));
  EXPECT_THAT(TargetError("cores: 3"), HasSubstr("tiny.textproto:1:6: "));
}

TEST(ParseTarget, WinogradEfficiencyIsAShare) {
  const std::string text(kTiny);
  EXPECT_EQ(ParseTarget(text).winograd_efficiency, 0);
  EXPECT_EQ(ParseTarget(text + "winograd_efficiency: 0.5").winograd_efficiency,
            0.5);
  EXPECT_THAT(TargetError(text + "winograd_efficiency: 1.5"),
              HasSubstr("winograd_efficiency: expected a number from 0 to 1, "
                        "got 1.5"));
}

TEST(ParseTarget, RejectsWhatIsMissingOrNotPositive) {
  EXPECT_THAT(TargetError(""), HasSubstr("name is missing"));
  EXPECT_THAT(TargetError("name: \"x\" threads: -2"),
              HasSubstr("threads must be positive, got -2"));
  for (const char* field : {"threads: 2", "vector_bytes: 32", "l1_bytes: 1024",
                            "l2_bytes: 4096", "memory_gb_per_s: 10",
                            "memory_gb_per_s_limit: 15", "peak_gflops_f32: 100",
                            "peak_gflops_16: 200", "launch_overhead_ns: 500"}) {
    std::string text(kTiny);
    text.erase(text.find(field), std::string_view(field).size());
    EXPECT_THAT(TargetError(text), HasSubstr("must be positive, got 0"))
        << field;
  }
}

TEST(ParseTarget, DamagedDescriptionsAreReadOrRejected) {
  const auto counts = test::ReadDamaged(
      std::string(kTiny), 2000, ErrorCode::kGraph, [](const std::string& text) {
        EXPECT_GT(ParseTarget(text).threads, 0) << text;
      });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.rejected, 1000);
}

}  // namespace
}  // namespace fusor::ir
