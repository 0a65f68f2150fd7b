#include "runtime/data/datasets/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "runtime/data/datasets/image_folder.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/data/image/decode.h"
#include "tests/testing/data_error.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::DataError;
using ::fusor::testing::EncodeJpeg;
using ::fusor::testing::EncodePng;
using ::fusor::testing::ListSamples;
using ::fusor::testing::MakePicture;
using ::fusor::testing::WriteTestFile;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr OutputFormat kAllFormats[] = {
    OutputFormat::kPixels, OutputFormat::kJpeg, OutputFormat::kTfRecord,
    OutputFormat::kRecordIo, OutputFormat::kWebDataset};

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    for (int i = 0; i < 7; ++i) {
      const Image picture = MakePicture(40 + i, 60 - 5 * i, i);
      const std::string path =
          folder_ / fmt::format("source/{}/{}", i < 3 ? "cat" : "dog", i);
      if (i % 3 == 2) {
        WriteTestFile(path + ".png", EncodePng(picture));
      } else {
        WriteTestFile(path + ".jpg", EncodeJpeg(picture));
      }
    }
    fs::create_directory(target_);
  }

  ConvertReport Run(ConvertOptions options) {
    options.images_per_file = 3;
    options.threads = 2;
    return Convert(ImageFolder(folder_ / "source"), target_, "train", options);
  }

  // Decodes all images of a set.
  static std::vector<Image> Decode(const Dataset& images) {
    std::vector<Image> decoded;
    std::vector<uint8_t> storage;
    for (int64_t i = 0; i < images.size(); ++i) {
      const Sample sample = images.Read(i, storage);
      decoded.push_back(DecodeImage(sample.bytes, images.Name(i)));
    }
    return decoded;
  }

  // Returns the names of the files in the target, sorted.
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(target_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TemporaryFolder folder_;
  const std::string target_ = folder_ / "target";
};

TEST_F(ConvertTest, KeepsSamplesInOrderInEachFormat) {
  const ImageFolder source(folder_ / "source");
  for (const OutputFormat format : kAllFormats) {
    SCOPED_TRACE(static_cast<int>(format));
    fs::remove_all(target_);
    fs::create_directory(target_);
    const ConvertReport report = Run({.format = format});
    EXPECT_EQ(report.images, 7);
    EXPECT_EQ(report.files, 3);
    EXPECT_EQ(report.kept, 0);
    const auto images = OpenDataset(target_, {});
    ASSERT_EQ(images->size(), 7);
    ASSERT_EQ(images->num_classes(), 2);
    if (format != OutputFormat::kPixels && format != OutputFormat::kJpeg) {
      EXPECT_EQ(ListSamples(*images), ListSamples(source));
    }
    const std::vector<Image> expected = Decode(source);
    const std::vector<Image> got = Decode(*images);
    for (int64_t i = 0; i < 7; ++i) {
      EXPECT_EQ(images->Label(i), source.Label(i));
      EXPECT_EQ(got[i].width, expected[i].width);
      const bool png = source.Name(i).ends_with("png");
      if (format == OutputFormat::kJpeg && png) continue;
      EXPECT_EQ(got[i].pixels, expected[i].pixels) << i;
    }
    const bool named = format != OutputFormat::kRecordIo &&
                       format != OutputFormat::kWebDataset;
    EXPECT_EQ(images->class_names()[1], named ? "dog" : "1");
    EXPECT_EQ(OpenDataset(target_, {.split = Split::kVal}), nullptr);
  }
}

TEST_F(ConvertTest, WritesTheIndexFilesOfTheFormat) {
  Run({.format = OutputFormat::kTfRecord});
  EXPECT_THAT(Files(),
              ElementsAre("train-00000-of-00003.tfrecord",
                          "train-00000-of-00003.tfrecord.idx",
                          "train-00001-of-00003.tfrecord",
                          "train-00001-of-00003.tfrecord.idx",
                          "train-00002-of-00003.tfrecord",
                          "train-00002-of-00003.tfrecord.idx", "train.json"));
  fs::remove_all(target_);
  fs::create_directory(target_);
  Run({.format = OutputFormat::kRecordIo});
  EXPECT_TRUE(fs::exists(target_ + "/train-00001-of-00003.idx"));
}

TEST_F(ConvertTest, ResizesTheShorterSideOfLargerImages) {
  for (const OutputFormat format : kAllFormats) {
    SCOPED_TRACE(static_cast<int>(format));
    fs::remove_all(target_);
    fs::create_directory(target_);
    Run({.format = format, .size = 36});
    const std::vector<Image> source = Decode(ImageFolder(folder_ / "source"));
    const std::vector<Image> images = Decode(*OpenDataset(target_, {}));
    ASSERT_EQ(images.size(), source.size());
    EXPECT_EQ(images[0].width, 36);  // of 40x60
    EXPECT_EQ(images[0].height, 54);
    EXPECT_EQ(images[6].width, source[6].width);  // 46x30
    EXPECT_EQ(images[6].height, 30);
  }
}

TEST_F(ConvertTest, KeepsTheFilesOfAnEarlierConversion) {
  Run({});
  const std::string second = target_ + "/train-00001-of-00003.fusor";
  fs::remove(second);
  const auto time =
      fs::last_write_time(target_ + "/train-00000-of-00003.fusor");
  const ConvertReport report = Run({});
  EXPECT_EQ(report.kept, 2);
  EXPECT_EQ(report.images, 7);
  EXPECT_TRUE(fs::exists(second));
  EXPECT_EQ(fs::last_write_time(target_ + "/train-00000-of-00003.fusor"), time);
  for (const ConvertOptions& other :
       {ConvertOptions{.size = 32}, ConvertOptions{.quality = 80},
        ConvertOptions{.format = OutputFormat::kJpeg}}) {
    EXPECT_THAT([&] { Run(other); },
                DataError(target_,
                          "holds train files of another source or "
                          "other options"));
  }
  WriteTestFile(folder_ / "source/dog/9.jpg",
                EncodeJpeg(MakePicture(20, 20, 9)));
  EXPECT_THAT([&] { Run({}); }, DataError(target_, "of another source"));
}

TEST_F(ConvertTest, AStopLeavesFinishedFilesOnly) {
  int asked = 0;
  const ConvertReport report = Run({.stop = [&] { return ++asked > 1; }});
  EXPECT_TRUE(report.stopped);
  EXPECT_EQ(report.images, 3);
  EXPECT_THAT(Files(), ElementsAre("train-00000-of-00003.fusor", "train.json"));
}

TEST_F(ConvertTest, AnImageThatCannotBeReadIsAnError) {
  WriteTestFile(folder_ / "source/dog/5.jpg", {});
  EXPECT_THAT([&] { Run({.format = OutputFormat::kTfRecord}); },
              DataError("source/dog/5.jpg", "empty"));
  EXPECT_THAT(Files(),
              ElementsAre("train-00000-of-00003.tfrecord",
                          "train-00000-of-00003.tfrecord.idx", "train.json"));
}

TEST_F(ConvertTest, AFullDiskIsAnErrorThatLeavesNoPartOfAFile) {
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limited = before;
  limited.rlim_cur = 5000;
  setrlimit(RLIMIT_FSIZE, &limited);
  EXPECT_THAT([&] { Run({}); },
              DataError("train-00000-of-00003.fusor", "File too large"));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(Files(), ElementsAre("train.json"));
  EXPECT_EQ(Run({}).kept, 0);
}

}  // namespace
}  // namespace fusor::runtime
