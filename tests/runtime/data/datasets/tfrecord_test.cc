#include "runtime/data/datasets/tfrecord.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ir/support/little_endian.h"
#include "runtime/data/files/tf_example.h"
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

const std::vector<TestSample> kSamples = {{"first", 0, "cat"},
                                          {std::string(2000, 'x'), 2, "eel"},
                                          {"last", 1, "dog"}};

// A record with the framing of the format around any bytes.
std::string Frame(std::string_view data) {
  std::string length;
  AppendLittle<uint64_t>(data.size(), length);
  std::string record = length;
  AppendLittle(MaskedCrc32c(length), record);
  record += data;
  AppendLittle(MaskedCrc32c(data), record);
  return record;
}

// A short protobuf field of bytes.
std::string Field(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  field += static_cast<char>(bytes.size());
  return field + bytes;
}

// An entry of the features' map.
std::string Entry(const std::string& key, const std::string& feature) {
  return Field(1, Field(1, key) + Field(2, feature));
}

class TfRecord : public ::testing::Test {
 protected:
  // Returns the path.
  std::string Write(const std::string& name, std::string_view bytes) {
    WriteTestText(folder_ / name, bytes);
    return folder_ / name;
  }
  TfRecordSet Open(const RecordOptions& options = {}) {
    return {"DATA", {folder_ / "a"}, options};
  }

  test::TemporaryFolder folder_;
  std::string file_ = ShardBytes(ShardFormat::kTfRecord, kSamples);
};

TEST_F(TfRecord, ReadsRecordsOfSeveralFiles) {
  Write("a", file_);
  Write("b", ShardBytes(ShardFormat::kTfRecord, {{"more", 3, "fox"}}));
  const TfRecordSet images("DATA", {folder_ / "a", folder_ / "b"}, {});
  EXPECT_EQ(images.num_classes(), 4);
  EXPECT_THAT(images.class_names(), ElementsAre("cat", "dog", "eel", "fox"));
  EXPECT_THAT(
      ListSamples(images),
      ElementsAre("0 first", "2 " + kSamples[1].image, "1 last", "3 more"));
  EXPECT_EQ(images.Label(1), 2);
  EXPECT_EQ(images.Name(2), folder_ / "a:2");
  EXPECT_EQ(images.Name(3), folder_ / "b:0");
  EXPECT_THAT(images.warnings(), IsEmpty());
  EXPECT_THAT(images.Description(), HasSubstr("4 images in 2 files "));
}

// A tf.Example in protobuf's wire format, as Python's protobuf writes it:
// packed integers and keys in any order.
TEST_F(TfRecord, ReadsTensorFlowsBytes) {
  const std::string example(
      "\x0a\x3c\x0a\x1a\x0a\x11image/class/label\x12\x05\x1a\x03\x0a\x01\x02"
      "\x0a\x1e\x0a\x0dimage/encoded\x12\x0d\x0a\x0b\x0a\x09jpeg data",
      62);
  Write("a", Frame(example));
  const TfRecordSet images = Open();
  // No names of classes: labels count from 0.
  EXPECT_THAT(ListSamples(images), ElementsAre("2 jpeg data"));
  EXPECT_THAT(images.class_names(), ElementsAre("0", "1", "2"));
  EXPECT_THAT(images.warnings(),
              ElementsAre(HasSubstr("no image of class 0, labels start at 2")));
}

TEST_F(TfRecord, LabelsAreReadLaterIfTheirNumberIsKnown) {
  Write("a", file_);
  const TfRecordSet images = Open({.num_classes = 2});
  EXPECT_EQ(images.num_classes(), 2);
  EXPECT_THAT(images.class_names(), IsEmpty());
  EXPECT_EQ(images.Label(0), kUnknownLabel);
  std::vector<uint8_t> storage;
  EXPECT_EQ(images.Read(2, storage).label, 1);
  EXPECT_THAT(
      [&] { images.Read(1, storage); },
      DataError(folder_ / "a:1", "expected a label from 1 to 2, got 3"));
}

TEST_F(TfRecord, ALabelZeroMeansThatTheyCountFromZero) {
  // The writer adds 1.
  const std::string label = Field(1, std::string(1, '\0'));
  Write("a", ShardBytes(ShardFormat::kTfRecord, {{"x", 1, "dog"}}) +
                 Frame(Field(
                     1, Entry("image/class/label", Field(3, label)) +
                            Entry("image/encoded", Field(1, Field(1, "y"))))));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("2 x", "0 y"));
}

TEST_F(TfRecord, UsesAnIndexBesideTheFile) {
  Write("d/train-0", file_);
  const size_t first = ShardBytes(ShardFormat::kTfRecord, {kSamples[0]}).size();
  const std::string good =
      fmt::format("0 {}\n{} {}\n", first, first, file_.size() - first);
  for (const char* name : {"d/train-0.idx", "d/idx/train-0.idx",
                           "d/idx_files/train-0", "idx_files/train-0"}) {
    // Two records in one: shows that the index was read.
    const std::string path = Write(name, good);
    EXPECT_EQ(TfRecordSet("", {folder_ / "d/train-0"}, {}).size(), 2) << name;
    std::filesystem::remove(path);
  }
  EXPECT_EQ(TfRecordSet("", {folder_ / "d/train-0"}, {}).size(), 3);
}

TEST_F(TfRecord, TheFingerprintIsThatOfTheRecordsWithOrWithoutIndex) {
  Write("a", file_);
  const uint64_t without = Open().Fingerprint();
  EXPECT_EQ(Open({.num_classes = 3}).Fingerprint(), without);
  std::string index;
  size_t begin = 0;
  for (const TestSample& sample : kSamples) {
    const size_t size = ShardBytes(ShardFormat::kTfRecord, {sample}).size();
    index += fmt::format("{} {}\n", begin, size);
    begin += size;
  }
  Write("a.idx", index);
  EXPECT_EQ(Open().Fingerprint(), without);
  std::vector<TestSample> others = kSamples;
  others[0].image = "FIRST";  // the same size
  Write("a", ShardBytes(ShardFormat::kTfRecord, others));
  EXPECT_NE(Open().Fingerprint(), without);
}

TEST_F(TfRecord, AnIndexOfAnotherFileIsAnError) {
  Write("a", file_);
  const std::string index = folder_ / "a.idx";
  Write("a.idx", "0 40\n");
  EXPECT_THAT([&] { Open(); }, DataError(index, "make the index anew"));
  Write("a.idx", fmt::format("0 50\n60 {}\n", file_.size() - 60));
  EXPECT_THAT([&] { Open(); }, DataError(index,
                                         "line 2: expected a record at "
                                         "50"));
  Write("a.idx", fmt::format("0 {}\n", file_.size() + 1));
  EXPECT_THAT([&] { Open(); }, DataError(index, "line 1"));
  Write("a.idx", "0 x\n");
  EXPECT_THAT([&] { Open(); }, DataError(index,
                                         "line 1: expected two whole "
                                         "numbers"));
  Write("a.idx", fmt::format("0 50\n50 {}\n", file_.size() - 50));
  const TfRecordSet images = Open({.num_classes = 3});
  std::vector<uint8_t> storage;
  EXPECT_THAT([&] { images.Read(1, storage); }, DataError("a:1", "checksum"));
}

TEST_F(TfRecord, DamageIsAnErrorOfItsRecord) {
  std::string bytes = file_;
  bytes[bytes.size() - 8] ^= 1;
  Write("a", bytes);
  const TfRecordSet images = Open();
  std::vector<uint8_t> storage;
  EXPECT_EQ(images.Read(0, storage).label, 0);
  EXPECT_THAT([&] { images.Read(2, storage); },
              DataError(folder_ / "a:2",
                        "the record is damaged: expected "
                        "checksum"));
}

TEST_F(TfRecord, DamageOfALengthIsAnErrorOfTheFile) {
  std::string bytes = file_;
  bytes[0] ^= 1;
  Write("a", bytes);
  EXPECT_THAT([&] { Open(); }, DataError(folder_ / "a:0", "not a TFRecord"));
  Write("a", file_.substr(0, file_.size() - 1));
  EXPECT_THAT([&] { Open(); },
              DataError(folder_ / "a:2", "the file ends within this record"));
  Write("a", file_ + "123");
  EXPECT_THAT([&] { Open(); },
              DataError(folder_ / "a:3", "the file ends within this record"));
  // A length with a good checksum that no memory could hold.
  std::string huge;
  AppendLittle<uint64_t>(uint64_t{1} << 62, huge);
  AppendLittle(MaskedCrc32c(huge), huge);
  Write("a", huge + std::string(100, '\0'));
  EXPECT_THAT([&] { Open(); }, DataError(folder_ / "a:0",
                                         "expected 4611686018427387904 bytes, "
                                         "got 96"));
}

TEST_F(TfRecord, ARecordWithoutImageOrLabelIsAnErrorOfItsRecord) {
  Write("a", file_ + Frame("no example") + Frame(""));
  const TfRecordSet images = Open();
  EXPECT_EQ(images.Label(3), kUnknownLabel);
  std::vector<uint8_t> storage;
  EXPECT_THAT([&] { images.Read(3, storage); },
              DataError(folder_ / "a:3",
                        "expected a tf.Example with "
                        "image/encoded and image/class/label, "
                        "got other bytes"));
  EXPECT_THAT([&] { images.Read(4, storage); },
              DataError(folder_ / "a:4", "got no image/encoded"));
  Write("a", Frame(""));
  EXPECT_THAT([&] { Open(); }, DataError("DATA", "no record has a label"));
}

TEST_F(TfRecord, AFileThatHasBecomeShorterIsAnError) {
  Write("a", file_);
  const TfRecordSet images = Open();
  std::filesystem::resize_file(folder_ / "a", file_.size() - 1);
  std::vector<uint8_t> storage;
  EXPECT_THAT([&] { images.Read(2, storage); },
              DataError(folder_ / "a", "become shorter"));
}

}  // namespace
}  // namespace fusor::runtime
