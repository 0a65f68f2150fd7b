#include "runtime/data/datasets/zip_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/data/datasets/image_folder.h"
#include "runtime/data/datasets/open_dataset.h"
#include "tests/testing/data_error.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::DataError;
using ::fusor::testing::ListSamples;
using ::fusor::testing::WriteTestText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class ZipImagesTest : public ::testing::Test {
 protected:
  // Writes an archive with libzip. Names that end with a slash are folders.
  void Write(const std::string& name,
             const std::vector<std::pair<std::string, std::string>>& files,
             zip_int32_t method = ZIP_CM_STORE) {
    int error = 0;
    zip_t* zip =
        zip_open((folder_ / name).c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
    ASSERT_NE(zip, nullptr);
    for (const auto& [path, bytes] : files) {
      if (path.ends_with('/')) {
        zip_dir_add(zip, path.c_str(), ZIP_FL_ENC_UTF_8);
        continue;
      }
      zip_source_t* source =
          zip_source_buffer(zip, bytes.data(), bytes.size(), 0);
      const zip_int64_t index =
          zip_file_add(zip, path.c_str(), source, ZIP_FL_ENC_UTF_8);
      zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), method,
                               0);
    }
    ASSERT_EQ(zip_close(zip), 0);
  }
  std::string ReadBytes(const std::string& name) {
    std::vector<uint8_t> bytes;
    ReadFile(folder_ / name, ErrorCode::kInternal, bytes);
    return {bytes.begin(), bytes.end()};
  }
  ZipImages Open() { return ZipImages(folder_ / "a.zip", ""); }

  test::TemporaryFolder folder_;
};

TEST_F(ZipImagesTest, HasTheOrderOfAnImageFolder) {
  std::vector<std::pair<std::string, std::string>> files = {
      {"b/2.jpg", "2"},   {"a/z.jpg", "z"},     {"a/s/t/1.png", "1"},
      {"B/x.webp", "x"},  {"a/s-t/3.jpg", "3"}, {"a/s/9.jpg", "9"},
      {"top.jpg", "top"}, {"a/readme.txt", ""}, {"a/.4.jpg", "hidden"}};
  for (const auto& [path, bytes] : files) {
    WriteTestText(folder_ / ("folder/" + path), bytes);
  }
  Write("a.zip", files, ZIP_CM_DEFLATE);
  const ZipImages images = Open();
  const ImageFolder folder(folder_ / "folder");
  EXPECT_EQ(ListSamples(images), ListSamples(folder));
  EXPECT_EQ(images.class_names(), folder.class_names());
  EXPECT_EQ(images.Name(0), folder_ / "a.zip:B/x.webp");
  EXPECT_EQ(images.Label(images.size() - 1), 2);
  EXPECT_EQ(ListSamples(ZipImages(folder_ / "a.zip", "", 2)),
            ListSamples(ImageFolder(folder_ / "folder", 2)));
}

TEST_F(ZipImagesTest, FindsSplitsBelowOuterFolders) {
  for (const std::string outer : {"", "set/", "work/set/"}) {
    Write("a.zip", {{outer + "train/a/1.jpg", "1"},
                    {outer + "train/b/2.jpg", "2"},
                    {outer + "val/b/3.jpg", "3"},
                    {"__MACOSX/" + outer + "x/._1.jpg", "x"}});
    const std::string path = folder_ / "a.zip";
    EXPECT_THAT(NamedSplits(path), ElementsAre(Split::kTrain, Split::kVal));
    EXPECT_THAT(ListSamples(*OpenDataset(path, {})), ElementsAre("0 1", "1 2"));
    EXPECT_THAT(ListSamples(*OpenDataset(path, {.split = Split::kVal})),
                ElementsAre("0 3"));
  }
  Write("a.zip", {{"a/1.jpg", "1"}, {"b/2.jpg", "2"}});
  EXPECT_THAT(NamedSplits(folder_ / "a.zip"), IsEmpty());
  EXPECT_EQ(OpenDataset(folder_.path(), {.split = Split::kVal})->size(), 2);
}

TEST_F(ZipImagesTest, AFolderMayHaveAnArchivePerSplit) {
  Write("train.zip", {{"a/1.jpg", "1"}, {"b/2.jpg", "2"}});
  EXPECT_EQ(OpenDataset(folder_.path(), {.split = Split::kVal}), nullptr);
  Write("val.zip", {{"val/a/3.jpg", "3"}});
  EXPECT_THAT(ListSamples(*OpenDataset(folder_.path(), {})),
              ElementsAre("0 1", "1 2"));
  EXPECT_THAT(ListSamples(*OpenDataset(folder_.path(), {.split = Split::kVal})),
              ElementsAre("0 3"));
  Write("val2.zip", {{"val/a/3.jpg", "3"}});
  EXPECT_THAT(
      [&] { OpenDataset(folder_.path(), {.split = Split::kVal}); },
      DataError(folder_.path(), "expected one zip archive per split, got 2"));
}

TEST_F(ZipImagesTest, ThreadsReadAtTheSameTime) {
  std::vector<std::pair<std::string, std::string>> files;
  for (int i = 0; i < 40; ++i) {
    files.emplace_back(fmt::format("a/{:02}.jpg", i),
                       std::string(1000 + i, 'x'));
  }
  Write("a.zip", files, ZIP_CM_DEFLATE);
  const ZipImages images = Open();
  std::atomic<int> good = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<uint8_t> storage;
      for (int64_t i = 0; i < images.size(); ++i) {
        if (std::ssize(images.Read(i, storage).bytes) == 1000 + i) ++good;
      }
    });
  }
  threads.clear();  // joins
  EXPECT_EQ(good, 160);
}

TEST_F(ZipImagesTest, DamageIsAnErrorOfItsRecord) {
  for (const zip_int32_t method : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    Write("a.zip", {{"a/1.jpg", "content content content"}}, method);
    std::string bytes = ReadBytes("a.zip");
    bytes[30 + 7 + 2] ^= 1;  // the first file's contents
    WriteTestText(folder_ / "a.zip", bytes);
    const ZipImages images = Open();
    std::vector<uint8_t> storage;
    EXPECT_THAT([&] { images.Read(0, storage); },
                DataError("a.zip:a/1.jpg", "the file is damaged: expected"));
  }
}

TEST_F(ZipImagesTest, ADamagedArchiveIsAnError) {
  Write("a.zip", {{"a/1.jpg", "one"}, {"b/2.jpg", "two"}});
  const std::string good = ReadBytes("a.zip");
  const auto open = [&] { Open(); };
  WriteTestText(folder_ / "a.zip", good.substr(0, good.size() - 1));
  EXPECT_THAT(open, DataError("a.zip", "has no end"));
  std::string bad = good;
  bad[good.size() - 22 + 19] = 1;  // position of the directory
  WriteTestText(folder_ / "a.zip", bad);
  EXPECT_THAT(open, DataError("a.zip", "expected a directory of"));
  bad = good;
  bad[good.find("PK\1\2")] = 'x';
  WriteTestText(folder_ / "a.zip", bad);
  EXPECT_THAT(open, DataError("a.zip", "expected an entry at"));
  bad = good;
  bad[good.find("PK\1\2") + 45] = 1;  // position of the first file
  WriteTestText(folder_ / "a.zip", bad);
  EXPECT_THAT(open, DataError("a.zip:a/1.jpg", "ends within this file"));
}

TEST_F(ZipImagesTest, ABombIsAnErrorBeforeItsMemoryIsNeeded) {
  Write("a.zip", {{"a/1.jpg", std::string(100, 'x')}}, ZIP_CM_DEFLATE);
  std::string bytes = ReadBytes("a.zip");
  bytes[bytes.find("PK\1\2") + 27] = 0x40;  // 1 GiB
  WriteTestText(folder_ / "a.zip", bytes);
  EXPECT_THAT([&] { Open(); }, DataError("a.zip:a/1.jpg", "got 1073741924"));
}

TEST_F(ZipImagesTest, AnArchiveWithoutClassesIsAnError) {
  Write("a.zip", {{"1.jpg", "one"}});
  EXPECT_THAT([&] { Open(); },
              DataError("a.zip", "expected one folder of images per class"));
  Write("a.zip", {{"a/1.jpg", "one"}, {"b/", ""}});
  EXPECT_THAT([&] { Open(); },
              DataError("a.zip", "no image in class folder 'b'"));
  Write("a.zip", {{"val/a/1.jpg", "one"}});
  EXPECT_THAT([&] { OpenDataset(folder_ / "a.zip", {}); },
              DataError("a.zip", "got only val"));
}

TEST_F(ZipImagesTest, TheFingerprintTellsContentsApart) {
  Write("a.zip", {{"a/1.jpg", "one"}});
  const uint64_t expected = Open().Fingerprint();
  Write("a.zip", {{"a/1.jpg", "two"}});
  EXPECT_NE(Open().Fingerprint(), expected);
  Write("a.zip", {{"a/2.jpg", "one"}});
  EXPECT_NE(Open().Fingerprint(), expected);
  EXPECT_THAT(Open().Description(), HasSubstr("1 images "));
}

}  // namespace
}  // namespace fusor::runtime
