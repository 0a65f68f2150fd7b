#include "runtime/data/datasets/packed_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ir/support/hash.h"
#include "ir/support/little_endian.h"
#include "tests/testing/data_error.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::DataError;
using ::fusor::testing::ListSamples;
using ::fusor::testing::ShardBytes;
using ::fusor::testing::TestSample;
using ::fusor::testing::WriteTestText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kTrailerBytes = 48;

class PackedImagesTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, std::string_view bytes) {
    WriteTestText(folder_ / name, bytes);
  }
  PackedImages Open() { return {"DATA", {folder_ / "a"}}; }
  // Writes the file with 4 bytes of the trailer replaced, and a checksum that
  // suits them.
  void WriteTrailer(size_t at, uint32_t value) {
    std::string file = file_;
    const auto put = [&](size_t position, uint32_t number) {
      std::string bytes;
      AppendLittle(number, bytes);
      file.replace(file.size() - kTrailerBytes + position, 4, bytes);
    };
    put(at, value);
    put(36,
        Crc32c(std::string_view(file).substr(file.size() - kTrailerBytes, 36)));
    Write("a", file);
  }

  test::TemporaryFolder folder_;
  std::string file_ =
      ShardBytes(ShardFormat::kPacked,
                 {{"first", 1, "dog"}, {std::string(9000, 'x'), 0, "cat"}});
};

TEST_F(PackedImagesTest, ReadsImagesOfSeveralFiles) {
  Write("a", file_);
  Write("b", ShardBytes(ShardFormat::kPacked,
                        {{"third", 1, "dog"}, {"", 0, "cat"}}));
  const PackedImages images("DATA", {folder_ / "a", folder_ / "b"});
  EXPECT_THAT(
      ListSamples(images),
      ElementsAre("1 first", "0 " + std::string(9000, 'x'), "1 third", "0 "));
  EXPECT_THAT(images.class_names(), ElementsAre("cat", "dog"));
  EXPECT_EQ(images.num_classes(), 2);
  EXPECT_EQ(images.Label(2), 1);
  EXPECT_EQ(images.Name(2), folder_ / "b:0");
  EXPECT_THAT(images.Description(), HasSubstr("4 images in 2 files "));
}

TEST_F(PackedImagesTest, TheFingerprintIsThatOfTheImages) {
  Write("a", file_);
  const uint64_t expected = Open().Fingerprint();
  Write("other", file_);
  EXPECT_EQ(PackedImages("", {folder_ / "other"}).Fingerprint(), expected);
  Write("a",
        ShardBytes(ShardFormat::kPacked,
                   {{"First", 1, "dog"}, {std::string(9000, 'x'), 0, "cat"}}));
  EXPECT_NE(Open().Fingerprint(), expected);
}

TEST_F(PackedImagesTest, ADamagedImageIsAnErrorOfItsRecord) {
  file_[16] ^= 1;
  Write("a", file_);
  const PackedImages images = Open();
  std::vector<uint8_t> storage;
  EXPECT_EQ(images.Read(1, storage).label, 0);
  EXPECT_THAT([&] { images.Read(0, storage); },
              DataError(folder_ / "a:0",
                        "the image is damaged: expected "
                        "checksum"));
}

TEST_F(PackedImagesTest, ADamagedFileIsAnError) {
  const auto open = [&] { Open(); };
  Write("a", file_.substr(0, file_.size() - 1));
  EXPECT_THAT(open, DataError(folder_ / "a", "without an end"));
  Write("a", file_.substr(0, 20));
  EXPECT_THAT(open, DataError(folder_ / "a", "without an end"));
  std::string bad = file_;
  bad[8] = 2;
  Write("a", bad);
  EXPECT_THAT(open, DataError(folder_ / "a", "expected version 1"));
  bad = file_;
  bad[bad.size() - kTrailerBytes] ^= 1;
  Write("a", bad);
  EXPECT_THAT(open, DataError(folder_ / "a", "wrong checksum of its end"));
  bad = file_;
  bad[bad.size() - kTrailerBytes - 1] ^= 1;
  Write("a", bad);
  EXPECT_THAT(open, DataError(folder_ / "a", "wrong checksum of its index"));
  Write("a", ShardBytes(ShardFormat::kPacked, {}));
  EXPECT_THAT(open, DataError(folder_ / "a", "has no images"));
}

TEST_F(PackedImagesTest, NumbersBeyondTheFileAreAnError) {
  const auto open = [&] { Open(); };
  WriteTrailer(4, 1U << 30);  // images
  EXPECT_THAT(open, DataError(folder_ / "a", "images and their index in"));
  WriteTrailer(12, 1U << 30);  // position of the index
  EXPECT_THAT(open, DataError(folder_ / "a", "images and their index in"));
  WriteTrailer(16, 15);  // bytes of names
  EXPECT_THAT(open, DataError(folder_ / "a", "images and their index in"));
  WriteTrailer(24, 1);  // classes
  EXPECT_THAT(open, DataError("a:0: the index is damaged", "label 1 of 1"));
  WriteTrailer(24, 1U << 31);
  EXPECT_THAT(open, DataError("names of 2147483648 classes", "got 2"));
}

TEST_F(PackedImagesTest, FilesOfOtherClassesAreAnError) {
  Write("a", file_);
  Write("b", ShardBytes(ShardFormat::kPacked, {{"x", 0, "cow"}}));
  EXPECT_THAT(
      [&] {
        PackedImages("", {folder_ / "a", folder_ / "b"});
      },
      DataError(folder_ / "b", "expected the classes of " + (folder_ / "a")));
}

TEST_F(PackedImagesTest, FewPagesAreMappedAtATime) {
  const auto mapped_megabytes = [] {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line) && !line.starts_with("RssFile:")) {
    }
    return std::stol(line.substr(line.find_first_of("0123456789"))) / 1024;
  };
  Write("a", ShardBytes(ShardFormat::kPacked,
                        std::vector<TestSample>(
                            40, {std::string(4 << 20, 'x'), 0, "cat"})));
  const PackedImages images = Open();
  const int64_t before = mapped_megabytes();
  std::vector<uint8_t> storage;
  for (int64_t i = 0; i < images.size(); ++i) {
    images.Read(i, storage);
    EXPECT_LT(mapped_megabytes(), before + 100);
  }
}

TEST_F(PackedImagesTest, AFileThatHasBecomeShorterIsAnError) {
  // Linux 5.14 reads on request; before, an access ends the process.
  constexpr int kPopulateRead = 22;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool supported = madvise(memory, page, kPopulateRead) == 0;
  munmap(memory, page);
  if (!supported) GTEST_SKIP() << "an older kernel";
  Write("a", file_);
  const PackedImages images = Open();
  std::filesystem::resize_file(folder_ / "a", 100);
  std::vector<uint8_t> storage;
  EXPECT_THAT([&] { images.Read(1, storage); },
              DataError(folder_ / "a", "become shorter"));
}

}  // namespace
}  // namespace fusor::runtime
