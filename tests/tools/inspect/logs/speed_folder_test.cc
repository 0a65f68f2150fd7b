#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "ir/support/error.h"
#include "tests/testing/temporary_folder.h"
#include "tools/inspect/logs/speed_log.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Returns DLLogger's lines for `steps` steps of `images` images at `rate`
// images/s.
std::string DllLines(int steps, double rate, double images) {
  std::string text;
  for (int i = 1; i <= steps; ++i) {
    const double at = i * images / rate;
    text += fmt::format(
        "DLL 2020-09-15 14:{:02}:{:09.6f} - Epoch: 0 Iteration: {}  train.loss "
        ": 7.0  train.total_ips : {:.2f} img/s\n",
        static_cast<int>(at) / 60, at - static_cast<int>(at) / 60 * 60, i,
        i <= 20 ? 1.0 : rate);
  }
  return text;
}

// Returns lines that contain only speeds.
std::string TextLines(int steps, double rate) {
  std::string text;
  for (int i = 10; i <= steps; i += 10) {
    text += fmt::format(
        "epoch   0  iteration {:>6}/{}  loss 2.3  {:7.2f} images/s  lr 0.1  "
        "data wait 0.0 %\n",
        i, steps, rate);
  }
  return text;
}

class SpeedFolderTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  SpeedFolder Read(const SpeedFolderOptions& options = {}) const {
    return ReadSpeedFolder(root_.path(), options);
  }

  const test::TemporaryFolder root_;
};

TEST_F(SpeedFolderTest, ComputesPublishedMediansAndSpeedups) {
  const double speeds[] = {100, 104, 102};
  for (int run = 1; run <= 3; ++run) {
    Write(fmt::format("1n1g/rn50_b4_fp32_{}.log", run),
          DllLines(120, speeds[run - 1], 4));
    Write(fmt::format("2n8g/rn50_b4_fp32_{}.log", run),
          DllLines(120, 10 * speeds[run - 1], 64));
  }
  const SpeedFolder folder = Read();
  EXPECT_EQ(folder.definition, SpeedDefinition::kElapsed);
  EXPECT_EQ(SpeedJson(folder), json::parse(R"({"rn50": {
    "1n1g": {"average_speed": 102.0, "batch_size_per_device": 4,
             "median_speed": 102.0, "speedup": 1.0},
    "2n8g": {"average_speed": 1020.0, "batch_size_per_device": 4,
             "median_speed": 1020.0, "speedup": 10.0}}})"));
  const std::string text = SpeedText(folder);
  EXPECT_THAT(text,
              HasSubstr("rn50, batch 4 per rank, fp32 (DLLogger format)"));
  EXPECT_THAT(text, HasSubstr("1020.00     1020.00     10.00      62.5 %"));
  EXPECT_THAT(text,
              HasSubstr("images divided by the time from the end of step 20 to "
                        "the end of step 120"));
  const std::string svg = SpeedSvg(folder, "a<b");
  EXPECT_THAT(svg, AllOf(HasSubstr("a&lt;b"), HasSubstr("1020.00 images/s"),
                         Not(HasSubstr("nan"))));
}

TEST_F(SpeedFolderTest, UsesTheMeanIfLinesHaveNoTime) {
  Write("1n1g/r_b4_fp32_1.log", TextLines(120, 50));
  Write("1n2g/r_b4_fp32_1.log", TextLines(120, 90));
  const SpeedFolder folder = Read();
  EXPECT_EQ(folder.definition, SpeedDefinition::kMean);
  EXPECT_EQ(SpeedJson(folder)["r"]["1n2g"]["speedup"], 1.8);
  EXPECT_THAT(SpeedText(folder),
              HasSubstr("mean of the logged speeds of steps 21 to 120"));
  EXPECT_THAT([&] { Read({.definition = SpeedDefinition::kElapsed}); },
              ThrowsMessage<Error>(HasSubstr("too few lines with a time")));
}

TEST_F(SpeedFolderTest, MultipliesTheSpeedOfOneRank) {
  std::string fleet, paddle;
  for (int i = 0; i < 120; ++i) {
    fleet += fmt::format("worker_index: 0, step{} cost = 7, speed: 400.5\n", i);
    paddle +=
        fmt::format("[Pass 0, train batch {}]  loss 9, elapse 0.25 sec\n", i);
  }
  Write("2n4g/fleet_b32_amp_1.log", fleet);
  Write("2n4g/paddle_b32_amp_1.log", paddle);
  const json speeds = SpeedJson(Read());
  EXPECT_EQ(speeds["fleet"]["2n4g"]["median_speed"], 8 * 400.5);
  EXPECT_EQ(speeds["paddle"]["2n4g"]["median_speed"], 8 * 32 / 0.25);
  EXPECT_FALSE(speeds["fleet"]["2n4g"].contains("speedup"));
}

// All ranks print. The published script divides by the mean of their sums.
TEST_F(SpeedFolderTest, AddsUpMindSporesEpochs) {
  std::string text;
  for (int epoch = 1; epoch <= 10; ++epoch) {
    for (int rank = 0; rank < 2; ++rank) {
      text += fmt::format("epoch: {} step: 20, loss is 7\n", epoch);
    }
    for (int rank = 0; rank < 2; ++rank) {
      text += fmt::format("epoch time: {}.000 ms, per step time: 1.0 ms\n",
                          epoch == 1 ? 60'000 : 5000 + 100 * epoch + 50 * rank);
    }
  }
  Write("1n2g/rn50_b128_fp32_1.log", text);
  const SpeedFolder folder = Read();
  EXPECT_EQ(folder.definition, SpeedDefinition::kElapsed);
  const double seconds = 5 * 5.025 + 0.1 * (6 + 7 + 8 + 9 + 10);
  EXPECT_NEAR(SpeedJson(folder)["rn50"]["1n2g"]["median_speed"].get<double>(),
              2 * 128 * 100 / seconds, 0.005);
}

TEST_F(SpeedFolderTest, KeepsBatchesAndPrecisionsApart) {
  Write("1n1g/r_b4_fp32_1.log", TextLines(120, 50));
  Write("1n1g/r_b8_fp32_1.log", TextLines(120, 60));
  Write("1n1g/r_b8_amp_1.log", TextLines(120, 70));
  Write("1n1g/s_b8_amp_1.log", TextLines(120, 80));
  const json speeds = SpeedJson(Read());
  EXPECT_EQ(speeds["r_b4_fp32"]["1n1g"]["median_speed"], 50);
  EXPECT_EQ(speeds["r_b8_fp32"]["1n1g"]["median_speed"], 60);
  EXPECT_EQ(speeds["r_b8_amp"]["1n1g"]["median_speed"], 70);
  EXPECT_EQ(speeds["s"]["1n1g"]["median_speed"], 80);
}

TEST_F(SpeedFolderTest, HasNoSpeedupWithoutOneRank) {
  Write("4n8g/r_b4_fp32_1.log", TextLines(120, 50));
  const SpeedFolder folder = Read();
  EXPECT_FALSE(SpeedJson(folder)["r"]["4n8g"].contains("speedup"));
  EXPECT_THAT(SpeedText(folder), HasSubstr("no speedup: 1n1g is missing"));
  EXPECT_THAT(SpeedSvg(folder, "t"), HasSubstr("images/s"));
  Write("2n8g/r_b4_fp32_1.log", TextLines(120, 30));
  EXPECT_THAT(SpeedSvg(Read(), "t"), HasSubstr("1n1g is missing"));
}

TEST_F(SpeedFolderTest, RejectsLogsThatAreTooShort) {
  Write("1n1g/r_b4_fp32_1.log", TextLines(110, 50));
  EXPECT_THAT(
      [&] { Read(); },
      ThrowsMessage<Error>(HasSubstr(
          "1n1g/r_b4_fp32_1.log: too short: fusor lines up to step 110, "
          "expected 100 steps after the first 20")));
  EXPECT_EQ(SpeedJson(Read({.average = 90}))["r"]["1n1g"]["median_speed"], 50);
}

TEST_F(SpeedFolderTest, ReportsWhatIsWrongWithAFolder) {
  EXPECT_THAT([&] { Read(); }, ThrowsMessage<Error>(HasSubstr("found none")));
  EXPECT_THAT([] { ReadSpeedFolder("/nowhere/at/all", {}); },
              ThrowsMessage<Error>(HasSubstr("No such file")));
  Write("1n1g/notes.log", "x");
  EXPECT_THAT([&] { Read(); },
              ThrowsMessage<Error>(HasSubstr("MODEL_bBATCH_PRECISION_RUN")));
  std::filesystem::remove(root_.path() + "/1n1g/notes.log");
  Write("somewhere/r_b4_fp32_1.log", TextLines(120, 50));
  EXPECT_THAT([&] { Read(); }, ThrowsMessage<Error>(HasSubstr("NODESnGPUSg")));
}

TEST_F(SpeedFolderTest, RejectsLogsOfTwoFormatsInOneGroup) {
  Write("1n1g/r_b4_fp32_1.log", TextLines(120, 50));
  Write("1n1g/r_b4_fp32_2.log", DllLines(120, 50, 4));
  EXPECT_THAT([&] { Read(); },
              ThrowsMessage<Error>(HasSubstr("DLLogger format, but fusor")));
}

// Reads the 30 logs that DLPerf published for TensorFlow 2, and compares with
// the results of its two scripts.
TEST(RealLogs, MatchTheReportsOfThePublishedScripts) {
  const std::string root = FUSOR_REFERENCE_DIR;
  if (root.empty()) GTEST_SKIP() << "FUSOR_REFERENCE_DIR is not set in CMake";
  const std::string logs = root + "/dlperf_tf2_fp32_logs";
  for (const auto& [definition, file] :
       {std::pair(SpeedDefinition::kElapsed, "/expected_time.json"),
        std::pair(SpeedDefinition::kMean, "/expected_mean.json")}) {
    std::ifstream expected(logs + file);
    EXPECT_EQ(SpeedJson(ReadSpeedFolder(logs, {.definition = definition})),
              json::parse(expected))
        << file;
  }
}

TEST(RealLogs, AreReadFromEveryFramework) {
  const std::string root = FUSOR_REFERENCE_DIR;
  if (root.empty()) GTEST_SKIP() << "FUSOR_REFERENCE_DIR is not set in CMake";
  int read = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(root + "/sample_logs")) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".log") continue;
    std::ifstream file(path);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (path.ends_with("/apex_overflow.log")) {
      EXPECT_THAT([&] { ParseSpeedLog(text, path); },
                  ThrowsMessage<Error>(HasSubstr("3 of a gradient overflow")));
      continue;
    }
    const SpeedLog log = ParseSpeedLog(text, path);
    const SpeedWindow all{0, log.records.back().end - log.records[0].begin};
    const RunSpeed run =
        SpeedOf(log, {log.records[0].begin, all.average}, 128, 1, path);
    EXPECT_GT(run.mean.value_or(0), 200) << path;
    ++read;
  }
  EXPECT_EQ(read, 8);
}

}  // namespace
}  // namespace fusor::inspect
