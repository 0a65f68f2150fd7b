#include "runtime/data/datasets/open_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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
using ::testing::IsEmpty;

class OpenDatasetTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, std::string_view bytes) {
    WriteTestText(folder_ / name, bytes);
  }
  void WriteRecords(const std::string& name, const std::string& image) {
    Write(name, ShardBytes(ShardFormat::kTfRecord,
                           {{image, 0, "a"}, {image + "'", 1, "b"}}));
  }
  // Returns the images of a split, "none" if it is null.
  std::vector<std::string> List(const std::string& path, Split split) {
    const auto images = OpenDataset(path, {.split = split});
    if (images == nullptr) return {"none"};
    return ListSamples(*images);
  }

  test::TemporaryFolder folder_;
};

TEST_F(OpenDatasetTest, FindsTheSplitsOfFolders) {
  Write("train/a/1.jpg", "1");
  Write("train/b/2.jpg", "2");
  EXPECT_THAT(List(folder_.path(), Split::kTrain), ElementsAre("0 1", "1 2"));
  EXPECT_THAT(List(folder_.path(), Split::kVal), ElementsAre("none"));
  EXPECT_THAT(List(folder_ / "train", Split::kVal), ElementsAre("0 1", "1 2"));
  WriteRecords("validation/x", "v");
  EXPECT_THAT(List(folder_.path(), Split::kVal), ElementsAre("0 v", "1 v'"));
  Write("val/a/3.jpg", "3");
  EXPECT_THAT(List(folder_.path(), Split::kVal), ElementsAre("0 3"));
}

TEST_F(OpenDatasetTest, FindsTheSplitsOfShardsInOneFolder) {
  WriteRecords("train-1", "t1");
  WriteRecords("train-0", "t0");
  Write("README", "text");
  Write("_SUCCESS", "");
  Write("idx/train-0.txt", "not an index");
  EXPECT_THAT(List(folder_.path(), Split::kTrain),
              ElementsAre("0 t0", "1 t0'", "0 t1", "1 t1'"));
  EXPECT_THAT(List(folder_.path(), Split::kVal), ElementsAre("none"));
  WriteRecords("validation-0", "v");
  WriteRecords("other", "o");
  EXPECT_THAT(List(folder_.path(), Split::kVal), ElementsAre("0 v", "1 v'"));
}

TEST_F(OpenDatasetTest, ListsTheSplitsThatAreNamed) {
  WriteRecords("a/val-0", "v");
  EXPECT_THAT(NamedSplits(folder_ / "a"), ElementsAre(Split::kVal));
  EXPECT_THAT(NamedSplits(folder_ / "a/val-0"), ElementsAre(Split::kVal));
  WriteRecords("b/train/x", "t");
  EXPECT_THAT(NamedSplits(folder_ / "b"), ElementsAre(Split::kTrain));
  EXPECT_THAT(NamedSplits(folder_ / "b/train"), IsEmpty());
  EXPECT_THAT(NamedSplits(folder_ / "none"), IsEmpty());
}

TEST_F(OpenDatasetTest, OtherShardsAreForBothSplits) {
  WriteRecords("b", "b");
  WriteRecords("a", "a");
  for (const Split split : {Split::kTrain, Split::kVal}) {
    EXPECT_THAT(List(folder_.path(), split),
                ElementsAre("0 a", "1 a'", "0 b", "1 b'"));
    EXPECT_THAT(List(folder_ / "b", split), ElementsAre("0 b", "1 b'"));
    EXPECT_THAT(List(folder_ / "[a-c]", split),
                ElementsAre("0 a", "1 a'", "0 b", "1 b'"));
  }
}

TEST_F(OpenDatasetTest, AFolderOfClassesIsAnImageFolderWhateverElseItHas) {
  Write("a/1.jpg", "1");
  Write("b/2.jpg", "2");
  WriteRecords("a.tfrecord", "t");
  EXPECT_THAT(List(folder_.path(), Split::kTrain), ElementsAre("0 1", "1 2"));
}

TEST_F(OpenDatasetTest, KeepsTheFirstOfEachClass) {
  WriteRecords("a", "a");
  WriteRecords("b", "b");
  const auto images =
      OpenDataset(folder_.path(), {.max_per_class = 1, .num_classes = 2});
  EXPECT_THAT(ListSamples(*images), ElementsAre("0 a", "1 a'"));
  EXPECT_NE(images->Fingerprint(),
            OpenDataset(folder_.path(), {})->Fingerprint());
}

TEST_F(OpenDatasetTest, MissingFilesOfANumberedSetAreAWarning) {
  WriteRecords("train-00000-of-00003.tfrecord", "a");
  WriteRecords("train-00002-of-00003.tfrecord", "c");
  EXPECT_THAT(OpenDataset(folder_.path(), {})->warnings(),
              ElementsAre(HasSubstr("1 of 3 files are missing, first "
                                    "train-00001-of-00003.tfrecord")));
  WriteRecords("train-00001-of-00003.tfrecord", "b");
  EXPECT_THAT(OpenDataset(folder_.path(), {})->warnings(), IsEmpty());
  WriteRecords("train-more", "d");
  EXPECT_THAT(OpenDataset(folder_.path(), {})->warnings(), IsEmpty());
}

TEST_F(OpenDatasetTest, WhatItCannotOpenIsAnError) {
  const auto open = [&](const std::string& path, Split split = Split::kTrain) {
    return [path, split] { OpenDataset(path, {.split = split}); };
  };
  EXPECT_THAT(open(folder_ / "none"),
              DataError(folder_ / "none", "no such file or folder"));
  Write("text", "neither");
  EXPECT_THAT(open(folder_ / "text"),
              DataError(folder_ / "text", "got another file"));
  WriteRecords("d/val-0", "v");
  EXPECT_THAT(open(folder_ / "d"), DataError(folder_ / "d", "got only val*"));
  Write("d/val-1", "");
  EXPECT_THAT(open(folder_ / "d", Split::kVal),
              DataError(folder_ / "d/val-1", "the file is empty"));
}

}  // namespace
}  // namespace fusor::runtime
