#include "runtime/data/datasets/recordio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <string>
#include <vector>

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
using ::testing::IsEmpty;

const std::vector<TestSample> kTwoSamples = {{"first", 1}, {"second!!", 0}};

std::string Magic() {
  std::string text;
  AppendLittle(kRecordIoMagic, text);
  return text;
}

std::string Record(std::string_view data) {
  std::string record = Magic();
  AppendLittle(static_cast<uint32_t>(data.size()), record);
  record += data;
  record.resize((record.size() + 3) / 4 * 4);
  return record;
}

// The header of an image with its labels.
std::string ImageHeader(uint32_t count, float label,
                        const std::vector<float>& labels = {}) {
  std::string header;
  AppendLittle(count, header);
  AppendLittle(std::bit_cast<uint32_t>(label), header);
  AppendLittle<uint64_t>(7, header);
  AppendLittle<uint64_t>(0, header);
  for (const float more : labels) {
    AppendLittle(std::bit_cast<uint32_t>(more), header);
  }
  return header;
}

class RecordIo : public ::testing::Test {
 protected:
  void Write(const std::string& name, std::string_view bytes) {
    WriteTestText(folder_ / name, bytes);
  }
  RecordIoSet Open(const RecordOptions& options = {}) {
    return {"DATA", {folder_ / "a.rec"}, options};
  }

  test::TemporaryFolder folder_;
  std::string file_ = ShardBytes(ShardFormat::kRecordIo, kTwoSamples);
};

TEST_F(RecordIo, ReadsRecords) {
  Write("a.rec", file_);
  const RecordIoSet images = Open();
  EXPECT_THAT(ListSamples(images), ElementsAre("1 first", "0 second!!"));
  EXPECT_THAT(images.class_names(), ElementsAre("0", "1"));
  EXPECT_EQ(images.Label(0), 1);
  EXPECT_EQ(images.Name(1), folder_ / "a.rec:1");
  EXPECT_EQ(Open({.num_classes = 2}).Label(0), kUnknownLabel);
}

// mx.recordio.pack(IRHeader(0, 3, 7, 0), b"abc"), written by MXRecordIO.
TEST_F(RecordIo, ReadsMxnetsBytes) {
  Write("a.rec",
        std::string("\x0a\x23\xd7\xce\x1b\0\0\0"
                    "\0\0\0\0\0\0\x40\x40\7\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abc\0",
                    36));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("3 abc"));
}

TEST_F(RecordIo, TheClassIsTheFirstOfSeveralLabels) {
  Write("a.rec",
        Record(ImageHeader(2, 9, {1, 5}) + "x") + Record(ImageHeader(0, 0)));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("1 x", "0 "));
}

TEST_F(RecordIo, RecordsThatHoldTheMagicAreSplit) {
  const std::string magic = Magic();
  std::vector<TestSample> samples = {{magic + "abcd" + magic + magic, 0},
                                     {"no" + magic, 1},
                                     {"abc" + magic + "x", 2}};
  const std::string file = ShardBytes(ShardFormat::kRecordIo, samples);
  Write("a.rec", file);
  EXPECT_THAT(ListSamples(Open()),
              ElementsAre("0 " + samples[0].image, "1 " + samples[1].image,
                          "2 " + samples[2].image));
  std::string index;
  size_t begin = 0;
  for (const TestSample& sample : samples) {
    index += fmt::format("0\t{}\n", begin);
    begin += ShardBytes(ShardFormat::kRecordIo, {sample}).size();
  }
  Write("a.idx", index);
  EXPECT_THAT(ListSamples(Open()),
              ElementsAre("0 " + samples[0].image, "1 " + samples[1].image,
                          "2 " + samples[2].image));
}

TEST_F(RecordIo, UsesAnIndexInAnyOrder) {
  Write("a.rec", file_);
  const uint64_t fingerprint = Open().Fingerprint();
  const size_t second =
      ShardBytes(ShardFormat::kRecordIo, {kTwoSamples[0]}).size();
  Write("a.idx", fmt::format("5\t{}\n3\t0\n", second));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("1 first", "0 second!!"));
  EXPECT_EQ(Open().Fingerprint(), fingerprint);
}

TEST_F(RecordIo, AnIndexOfAnotherFileIsAnError) {
  Write("a.rec", file_);
  const std::string index = folder_ / "a.idx";
  const auto expect = [&](const std::string& text, const std::string& message) {
    Write("a.idx", text);
    EXPECT_THAT([&] { Open(); }, DataError(index, message)) << text;
  };
  expect("0\t0\n1\t8\n", "expected a record of");
  expect("0\t0\n1\t2\n", "line 2: expected the position of a record");
  expect("0\t0\n1\t4000\n", "make the index anew");
  expect("0\t0\n1\t0\n", "expected distinct positions, got 0 twice");
  expect("0\t40\n", "expected a record at 0, got none");
  expect("0\t0\n", "expected the last record at the end of");
  expect("", "expected a record at 0");
  expect("0\n", "line 1: expected two whole numbers");
}

TEST_F(RecordIo, DamageIsAnError) {
  Write("a.rec", file_ + "abc");
  EXPECT_THAT([&] { Open(); }, DataError("a.rec:2", "the file ends within"));
  Write("a.rec", file_.substr(0, file_.size() - 4));
  EXPECT_THAT([&] { Open(); }, DataError("a.rec:1", "the file ends within"));
  Write("a.rec", file_ + std::string(8, 'x'));
  EXPECT_THAT([&] { Open(); },
              DataError("a.rec:2", "expected a first part of a record at"));
  std::string part = Magic();
  AppendLittle(uint32_t{1} << 29, part);
  Write("a.rec", file_ + part);
  EXPECT_THAT([&] { Open(); }, DataError("a.rec:2", "the file ends within"));
  Write("a.rec", file_ + part + Record("x"));
  EXPECT_THAT([&] { Open(); }, DataError("a.rec:2", "expected a further part"));
}

TEST_F(RecordIo, ARecordThatIsNoClassifiedImageIsAnErrorOfItsRecord) {
  Write("a.rec", file_ + Record("short") + Record(ImageHeader(0, 0.5f)) +
                     Record(ImageHeader(0, -1)) +
                     Record(ImageHeader(5, 0, {1})) +
                     Record(ImageHeader(1, 0)));
  const RecordIoSet images = Open();
  EXPECT_EQ(images.num_classes(), 2);
  EXPECT_THAT(images.warnings(), IsEmpty());
  std::vector<uint8_t> storage;
  const auto read = [&](int64_t index) {
    return [&, index] { images.Read(index, storage); };
  };
  EXPECT_EQ(images.Read(1, storage).label, 0);
  EXPECT_THAT(read(2), DataError("a.rec:2", "expected the header and labels"));
  EXPECT_THAT(read(3),
              DataError("a.rec:3", "expected a label that is a class"));
  EXPECT_THAT(read(4),
              DataError("a.rec:4", "expected a label that is a class"));
  EXPECT_THAT(read(5), DataError("a.rec:5", "expected the header and labels"));
  EXPECT_THAT(read(6), DataError("a.rec:6", "expected the header and labels"));
}

}  // namespace
}  // namespace fusor::runtime
