#include "runtime/train/train_log.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const IntervalReport kInterval = {.steps = 4,
                                  .epoch = 2,
                                  .iteration = 27,
                                  .iterations = 100,
                                  .seconds = 2,
                                  .loss = 7.093044,
                                  .images_per_second = 267.436,
                                  .lr = 0.25,
                                  .data_wait_share = 0.25};
const EvalReport kEvaluation = {
    .images = 50, .loss = 1.5, .top1 = 0.7612, .top5 = 0.9234};

class TrainLogTest : public ::testing::Test {
 protected:
  std::string Path(const char* name) const {
    return folder_.path() + "/" + name;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static std::vector<std::string> Lines(const std::string& path) {
    std::stringstream text(Read(path));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  TrainLogInfo info_{.parameters = {{"arch", "resnet50"}, {"lr", "0.25"}},
                     .steps_per_epoch = 10,
                     .batch_size = 32};
  test::TemporaryFolder folder_;
};

// Expects the templates of the lines that NVIDIA's script prints.
TEST_F(TrainLogTest, LinesAreThoseOfDllLogger) {
  const std::string stamp =
      "DLL [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6} - ";
  EXPECT_THAT(
      DllInterval(info_, kInterval),
      MatchesRegex(stamp + "Epoch: 2 Iteration: 7  train.loss : 7.09304  "
                           "train.total_ips : 267.44 img/s"));
  EXPECT_THAT(DllParameters(info_),
              MatchesRegex(stamp + "PARAMETER arch : resnet50  lr : 0.25 "));
  EXPECT_THAT(
      DllEvaluation(2, kEvaluation),
      MatchesRegex(stamp + "Epoch: 2  val.top1 : 76.12 % val.top5 : 92.34 % "
                           "val.loss : 1.50000 "));
  TrainReport report;
  report.losses = {1, 3, 2};
  report.images_per_second = 100;
  EXPECT_THAT(DllSummary(report),
              MatchesRegex(stamp + "Summary:  train.loss : 3.00000  "
                                   "train.total_ips : 100.00 img/s"));
}

TEST_F(TrainLogTest, TheRaportIsItsJsonForm) {
  const std::string path = Path("raport.json");
  {
    const auto log = OpenRaport(path, info_);
    log->Interval(kInterval);
    log->Evaluated(2, kEvaluation);
  }
  std::vector<json> logged;
  int units = 0;
  for (const std::string& line : Lines(path)) {
    ASSERT_EQ(line.substr(0, 5), "DLLL ");
    const json entry = json::parse(line.substr(5));
    for (const char* key : {"timestamp", "datetime", "elapsedtime"}) {
      EXPECT_TRUE(entry.at(key).is_string());
    }
    if (entry["type"] == "LOG") logged.push_back(entry);
    if (entry["type"] == "METADATA") {
      units += entry["metric"] == "train.total_ips" &&
                       entry["metadata"]["unit"] == "img/s"
                   ? 1
                   : 0;
    }
  }
  EXPECT_EQ(units, 1);
  ASSERT_EQ(logged.size(), 3u);
  EXPECT_EQ(logged[0]["step"], "PARAMETER");
  EXPECT_EQ(logged[0]["data"]["arch"], "resnet50");
  EXPECT_EQ(logged[1]["step"], json::array({2, 7}));
  EXPECT_EQ(logged[1]["data"]["train.loss"], 7.093044);
  EXPECT_EQ(logged[1]["data"]["train.total_ips"], 267.436);
  EXPECT_DOUBLE_EQ(logged[1]["data"]["train.compute_ips"], 267.436 / 0.75);
  EXPECT_DOUBLE_EQ(logged[1]["data"]["train.data_time"], 2 * 0.25 / 4);
  EXPECT_DOUBLE_EQ(logged[1]["data"]["train.compute_time"], 2 * 0.75 / 4);
  EXPECT_EQ(logged[1]["data"]["lr"], 0.25);
  EXPECT_EQ(logged[2]["step"], json::array({2}));
  EXPECT_DOUBLE_EQ(logged[2]["data"]["val.top1"], 76.12);
}

TEST_F(TrainLogTest, AResumedRunGoesOnInTheLinesWhereItsCheckpointWas) {
  const std::string path = Path("log.jsonl");
  const auto run = [&](int64_t first, int64_t last) {
    info_.start = first - 1;
    const auto log = OpenJsonLines(path, info_);
    for (int64_t step = first; step <= last; ++step) {
      log->Step({.step = step,
                 .epoch = 0,
                 .loss = 1 / static_cast<double>(step),
                 .lr = 0.1,
                 .seconds = 0.5});
    }
    log->Evaluated(1, kEvaluation);
  };
  run(1, 5);
  std::ofstream(path, std::ios::app) << "{\"type\":\"st";  // killed here
  run(4, 6);
  std::vector<std::string> seen;
  for (const std::string& line : Lines(path)) {
    const json entry = json::parse(line);
    seen.push_back(entry["type"].get<std::string>() + entry["step"].dump());
    if (entry["type"] == "step") {
      EXPECT_EQ(entry["loss"], 1 / entry["step"].get<double>());
      EXPECT_EQ(entry["images_per_second"], 64);
    }
  }
  EXPECT_THAT(seen, ElementsAre("start0", "step1", "step2", "step3", "start3",
                                "step4", "step5", "step6", "evaluation6"));
  run(1, 1);
  EXPECT_EQ(Lines(path).size(), 3u);
}

// The fuzzer of logs has found the second and the third.
TEST_F(TrainLogTest, AFileThatIsNoLogIsNotAppendedTo) {
  const std::string path = Path("notes.txt");
  for (const std::string text :
       {"my notes\n", "{\"step\":{}}\n", "{\"step\":1e300}\n"}) {
    std::ofstream(path) << text;
    info_.start = 3;
    try {
      OpenJsonLines(path, info_);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_THAT(e.what(), HasSubstr(path));
    }
    EXPECT_EQ(Read(path), text);
  }
}

TEST_F(TrainLogTest, PrometheusFilesHoldTheLastValues) {
  const std::string path = Path("fusor.prom");
  const auto log = OpenPrometheus(path, info_);
  log->Interval(kInterval);
  log->Evaluated(2, kEvaluation);
  IntervalReport later = kInterval;
  later.loss = 0.5;
  log->Interval(later);
  const std::string text = Read(path);
  for (const char* line : {"fusor_train_step{arch=\"resnet50\"} 27\n",
                           "fusor_train_loss{arch=\"resnet50\"} 0.5\n",
                           "fusor_eval_top1_ratio{arch=\"resnet50\"} 0.7612\n",
                           "# TYPE fusor_train_loss gauge\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(folder_.path()), {}),
      1);
}

// A reader of TFRecords and of the fields that scalars use. It follows the
// format's description, not our writer.
struct Scalar {
  int64_t step = 0;
  std::string tag;
  float value = 0;
};

class EventReader {
 public:
  explicit EventReader(std::string bytes) : bytes_(std::move(bytes)) {}

  std::vector<Scalar> Read() {
    while (at_ < bytes_.size()) {
      const std::string length = Take(8);
      EXPECT_EQ(Take(4), Masked(length));
      uint64_t size = 0;
      std::memcpy(&size, length.data(), 8);
      const std::string data = Take(size);
      EXPECT_EQ(Take(4), Masked(data));
      ReadEvent(data);
    }
    return scalars_;
  }
  const std::string& version() const { return version_; }

 private:
  static std::string Masked(const std::string& bytes) {
    const uint32_t crc = Crc32c(bytes);
    const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    std::string out(4, '\0');
    std::memcpy(out.data(), &masked, 4);
    return out;
  }
  std::string Take(size_t count) {
    const std::string taken = bytes_.substr(at_, count);
    EXPECT_EQ(taken.size(), count);
    at_ += count;
    return taken;
  }
  static uint64_t Varint(const std::string& data, size_t& at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(data.at(at++));
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  // Calls `field(number, payload)` for varints and fixed-size fields.
  template <typename Field>
  static void ForEachField(const std::string& data, Field field) {
    for (size_t at = 0; at < data.size();) {
      const uint64_t key = Varint(data, at);
      size_t size = 0;
      if (key % 8 == 0) {
        const size_t begin = at;
        Varint(data, at);
        size = at - begin;
        at = begin;
      } else {
        size = key % 8 == 1   ? 8
               : key % 8 == 5 ? 4
                              : static_cast<size_t>(Varint(data, at));
      }
      field(key / 8, data.substr(at, size));
      at += size;
    }
  }
  void ReadEvent(const std::string& data) {
    int64_t step = 0;
    ForEachField(data, [&](uint64_t number, const std::string& payload) {
      size_t begin = 0;
      if (number == 2) step = static_cast<int64_t>(Varint(payload, begin));
      if (number == 3) version_ = payload;
      if (number != 5) return;
      ForEachField(payload, [&](uint64_t, const std::string& value) {
        Scalar scalar{.step = step};
        ForEachField(value, [&](uint64_t part, const std::string& content) {
          if (part == 1) scalar.tag = content;
          if (part == 2) std::memcpy(&scalar.value, content.data(), 4);
        });
        scalars_.push_back(scalar);
      });
    });
  }

  const std::string bytes_;
  size_t at_ = 0;
  std::string version_;
  std::vector<Scalar> scalars_;
};

TEST_F(TrainLogTest, EventFilesHoldScalarsInCheckedRecords) {
  const std::string folder = Path("events/deep");
  {
    const auto log = OpenTensorBoard(folder, info_);
    log->Interval(kInterval);
    log->Evaluated(2, kEvaluation);
  }
  const std::filesystem::path file =
      std::filesystem::directory_iterator(folder)->path();
  EXPECT_THAT(file.filename().string(), HasSubstr("events.out.tfevents."));
  EventReader reader(Read(file));
  std::map<std::string, float> values;
  for (const Scalar& scalar : reader.Read()) {
    EXPECT_EQ(scalar.step, 27);
    values[scalar.tag] = scalar.value;
  }
  EXPECT_EQ(reader.version(), "brain.Event:2");
  EXPECT_EQ(values.at("train/loss"), 7.093044f);
  EXPECT_EQ(values.at("train/learning_rate"), 0.25f);
  EXPECT_EQ(values.at("val/top1"), 0.7612f);
  EXPECT_EQ(values.size(), 7u);
}

TEST_F(TrainLogTest, WhatCannotBeWrittenIsNamed) {
  for (const auto& open : {OpenRaport, OpenJsonLines, OpenPrometheus}) {
    try {
      open("/nowhere/log", info_);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_THAT(e.what(), HasSubstr("cannot write /nowhere/log: No such"));
    }
  }
  const auto log = OpenRaport("/dev/null", info_);
  log->Interval(kInterval);
  EXPECT_THROW(OpenRaport("/dev/full", info_), Error);
}

}  // namespace
}  // namespace fusor::runtime
