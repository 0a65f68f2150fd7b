#include "runtime/data/datasets/sample_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image_writer.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::Property;
using ::testing::ThrowsMessage;

constexpr SampleImagesOptions kSmall = {
    .train_images = 3, .val_images = 1, .min_side = 24, .max_side = 40};

class SampleImages : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("sample_images_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Maps the relative path of every file under `root` to its bytes.
  static std::map<std::string, std::vector<uint8_t>> Files(
      const fs::path& root) {
    std::map<std::string, std::vector<uint8_t>> files;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (!entry.is_regular_file()) continue;
      ReadFile(entry.path(), ErrorCode::kData,
               files[fs::relative(entry.path(), root)]);
    }
    return files;
  }

  fs::path folder_;
};

TEST_F(SampleImages, AreAnImageFolderOfDecodableJpegs) {
  WriteSampleImages(folder_ / "set", kSmall);
  std::map<std::string, int> counts;
  for (const auto& [path, bytes] : Files(folder_ / "set")) {
    ++counts[fs::path(path).parent_path()];
    ASSERT_EQ(bytes[0], 0xff) << path;
    ASSERT_EQ(bytes[1], 0xd8) << path;
    const Image image = DecodeImage(bytes, path);
    EXPECT_GE(std::min(image.width, image.height), kSmall.min_side) << path;
    EXPECT_LE(std::max(image.width, image.height), kSmall.max_side) << path;
  }
  const std::map<std::string, int> expected = {
      {"train/checkers", 3}, {"train/discs", 3},   {"train/gradients", 3},
      {"train/rings", 3},    {"train/stripes", 3}, {"val/checkers", 1},
      {"val/discs", 1},      {"val/gradients", 1}, {"val/rings", 1},
      {"val/stripes", 1},
  };
  EXPECT_EQ(counts, expected);
}

TEST_F(SampleImages, AllDifferAndRepeatWithTheSeed) {
  WriteSampleImages(folder_ / "a", kSmall);
  WriteSampleImages(folder_ / "b", kSmall);
  SampleImagesOptions other = kSmall;
  other.seed = 1;
  WriteSampleImages(folder_ / "c", other);
  const auto a = Files(folder_ / "a");
  EXPECT_EQ(a, Files(folder_ / "b"));
  const auto c = Files(folder_ / "c");
  std::vector<std::vector<uint8_t>> contents;
  for (const auto& [path, bytes] : a) {
    EXPECT_NE(bytes, c.at(path)) << path;
    contents.push_back(bytes);
  }
  std::sort(contents.begin(), contents.end());
  EXPECT_EQ(std::adjacent_find(contents.begin(), contents.end()),
            contents.end());
}

TEST_F(SampleImages, TakeTheirPlaceInAnEmptyFolderOnly) {
  WriteSampleImages(folder_ / "set/", kSmall);
  EXPECT_TRUE(fs::exists(folder_ / "set/train/rings/0002.jpg"));
  EXPECT_FALSE(fs::exists(folder_ / "set.partial"));
  const std::string set = folder_ / "set";
  EXPECT_THAT([&] { WriteSampleImages(set, kSmall); },
              ThrowsMessage<Error>("sample images: " + set +
                                   " holds something already"));
  fs::create_directory(folder_ / "empty");
  WriteSampleImages(folder_ / "empty", kSmall);
  EXPECT_TRUE(fs::exists(folder_ / "empty/val/discs/0000.jpg"));
}

TEST_F(SampleImages, LeaveNothingBehindWhenTheyCannotBeWritten) {
  std::ofstream(folder_ / "file") << "in the way";
  EXPECT_THAT(
      [&] { WriteSampleImages(folder_ / "file", kSmall); },
      ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kData)));
  EXPECT_THAT(
      [&] { WriteSampleImages(folder_ / "file/set", kSmall); },
      ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kData)));
  EXPECT_EQ(Files(folder_).size(), 1u);
}

TEST_F(SampleImages, RejectOptionsThatDrawNothing) {
  for (const SampleImagesOptions& options :
       {SampleImagesOptions{.train_images = 0},
        SampleImagesOptions{.val_images = -1},
        SampleImagesOptions{.min_side = 0},
        SampleImagesOptions{.min_side = 9, .max_side = 8}}) {
    EXPECT_THAT(
        [&] { WriteSampleImages(folder_ / "set", options); },
        ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kUsage)));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST(EncodeJpeg, KeepsASmoothImageWithinAFewLevels) {
  Image image;
  image.SetSize(64, 48);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      image.Row(y)[3 * x + 0] = static_cast<uint8_t>(3 * x);
      image.Row(y)[3 * x + 1] = static_cast<uint8_t>(4 * y);
      image.Row(y)[3 * x + 2] = static_cast<uint8_t>(100 + x);
    }
  }
  const Image decoded = DecodeImage(EncodeJpeg(image, 95), "a smooth image");
  ASSERT_EQ(decoded.pixels.size(), image.pixels.size());
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    ASSERT_NEAR(decoded.pixels[i], image.pixels[i], 6) << i;
  }
}

TEST(EncodeJpeg, RejectsWhatTheFormatCannotHold) {
  Image image;
  EXPECT_THAT(
      [&] { EncodeJpeg(image, 90); },
      ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kData)));
  image.SetSize(70000, 1);
  EXPECT_THAT(
      [&] { EncodeJpeg(image, 90); },
      ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kData)));
}

}  // namespace
}  // namespace fusor::runtime
