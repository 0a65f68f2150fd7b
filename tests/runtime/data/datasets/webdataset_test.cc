#include "runtime/data/datasets/webdataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isa-l/igzip_lib.h>

#include <string>
#include <vector>

#include "runtime/data/files/tar.h"
#include "tests/testing/data_error.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::DataError;
using ::fusor::testing::ListSamples;
using ::fusor::testing::ShardBytes;
using ::fusor::testing::WriteTestText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBlock = 512;

// Sets the checksum of a header.
void SetSum(std::string& header) {
  header.replace(148, 8, "        ");
  uint32_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += static_cast<uint8_t>(header[i]);
  header.replace(148, 7, fmt::format("{:06o}", sum) + std::string(1, '\0'));
}

std::string TarHeader(std::string_view name, char type,
                      const std::string& size) {
  std::string header(kBlock, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, size.size(), size);
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  SetSum(header);
  return header;
}

std::string Member(std::string_view name, std::string_view bytes,
                   char type = '0') {
  std::string member =
      TarHeader(name, type, fmt::format("{:011o}", bytes.size()));
  member += bytes;
  member.resize((member.size() + kBlock - 1) / kBlock * kBlock);
  return member;
}

// Lists the files of an archive as "name bytes".
std::vector<std::string> FilesOf(const std::string& archive) {
  const std::span<const uint8_t> bytes(
      reinterpret_cast<const uint8_t*>(archive.data()), archive.size());
  MemorySource source(bytes);
  std::vector<std::string> files;
  ReadTar(source, "archive", [&](const TarFile& file) {
    files.push_back(file.name + " " +
                    archive.substr(file.data.begin, file.data.size));
  });
  return files;
}

std::string Gzip(std::string bytes) {
  isal_zstream stream;
  isal_deflate_init(&stream);
  stream.gzip_flag = IGZIP_GZIP;
  stream.end_of_stream = 1;
  stream.next_in = reinterpret_cast<uint8_t*>(bytes.data());
  stream.avail_in = static_cast<uint32_t>(bytes.size());
  std::string packed(bytes.size() + 1000, '\0');
  stream.next_out = reinterpret_cast<uint8_t*>(packed.data());
  stream.avail_out = static_cast<uint32_t>(packed.size());
  EXPECT_EQ(isal_deflate(&stream), COMP_OK);
  packed.resize(packed.size() - stream.avail_out);
  return packed;
}

class WebDatasetTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, std::string_view bytes) {
    WriteTestText(folder_ / name, bytes);
  }
  WebDataset Open() { return {"DATA", {folder_ / "a.tar"}}; }

  test::TemporaryFolder folder_;
};

TEST_F(WebDatasetTest, ReadsSamplesOfSeveralArchives) {
  Write("b.tar", ShardBytes(ShardFormat::kTar, {{"first", 1}, {"second", 0}}));
  Write("a.tar.gz", Gzip(ShardBytes(ShardFormat::kTar, {{"third", 2}})));
  const WebDataset images("DATA", {folder_ / "b.tar", folder_ / "a.tar.gz"});
  EXPECT_THAT(ListSamples(images),
              ElementsAre("1 first", "0 second", "2 third"));
  EXPECT_THAT(images.class_names(), ElementsAre("0", "1", "2"));
  EXPECT_EQ(images.Label(2), 2);
  EXPECT_EQ(images.Name(1), folder_ / "b.tar:000000001");
  EXPECT_EQ(images.Name(2), folder_ / "a.tar.gz:000000000");
  EXPECT_THAT(images.warnings(), IsEmpty());
  EXPECT_THAT(images.Description(), HasSubstr("3 images in 2 files "));
}

TEST_F(WebDatasetTest, GroupsFilesUpToTheFirstDotOfTheirName) {
  Write("a.tar",
        Member("x.y/1.cls", "2\n") + Member("x.y/1.seg.png", "mask") +
            Member("x.y/1.JPG", "one") + Member("x.y/1.txt", "caption") +
            Member("x.y/2.json", R"({"label": 1, "more": [2]})") +
            Member("x.y/2.jpeg", "two") + Member("x.y/readme", "no sample") +
            Member("x.y/.hidden", "no sample") + Member("3.cls", "0") +
            Member("3.jpg", "three") + Member("3.png", "second image"));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("2 one", "1 two", "0 three"));
}

TEST_F(WebDatasetTest, NamesAreNeverPathsAndLinksAreIgnored) {
  Write("a.tar", Member("/etc/../1.jpg", "one") + Member("/etc/../1.cls", "0") +
                     Member("2.jpg", "", '2') + Member("3.jpg", "", '1') +
                     Member("folder", "", '5') + Member("null", "", '3'));
  const WebDataset images = Open();
  EXPECT_THAT(ListSamples(images), ElementsAre("0 one"));
  EXPECT_EQ(images.Name(0), folder_ / "a.tar:/etc/../1");
  EXPECT_THAT(images.warnings(),
              ElementsAre(HasSubstr("ignored 3 links and devices, first "
                                    "2.jpg")));
}

TEST_F(WebDatasetTest, TheFingerprintTellsContentsApart) {
  const auto fingerprint = [&](const std::string& image, int label) {
    Write("a.tar", ShardBytes(ShardFormat::kTar, {{image, label}}));
    return Open().Fingerprint();
  };
  const uint64_t expected = fingerprint("image", 1);
  EXPECT_EQ(fingerprint("image", 1), expected);
  EXPECT_NE(fingerprint("image", 0), expected);
  EXPECT_NE(fingerprint("other", 1), expected);
}

TEST_F(WebDatasetTest, ASampleWithoutImageOrClassIsAnErrorOfItsRecord) {
  Write("a.tar", Member("1.jpg", "one") + Member("1.cls", "0") +
                     Member("2.cls", "0") + Member("3.jpg", "three") +
                     Member("4.jpg", "four") + Member("4.cls", "cat") +
                     Member("5.jpg", "five") + Member("5.json", "[1") +
                     Member("6.jpg", "six") + Member("6.cls", "99999999999"));
  const WebDataset images = Open();
  std::vector<uint8_t> storage;
  const auto read = [&](int64_t index) {
    return [&, index] { images.Read(index, storage); };
  };
  EXPECT_EQ(images.Read(0, storage).label, 0);
  EXPECT_THAT(read(1), DataError("a.tar:2", "expected an image, got none"));
  for (int64_t i = 2; i < 6; ++i) {
    EXPECT_EQ(images.Label(i), kUnknownLabel);
    EXPECT_THAT(read(i), DataError(fmt::format("a.tar:{}", i + 1),
                                   "expected a class in a .cls or .json"));
  }
}

TEST_F(WebDatasetTest, AnArchiveOfOtherFilesIsAnError) {
  Write("a.tar", std::string(2 * kBlock, '\0'));
  EXPECT_THAT([&] { Open(); }, DataError("a.tar", "has no samples"));
  Write("a.tar", Member("1.cls", "0"));
  EXPECT_THAT([&] { Open(); }, DataError("DATA", "expected images"));
  Write("a.tar", Member("1.jpg", "0"));
  EXPECT_THAT([&] { Open(); }, DataError("DATA", "expected labels in .cls"));
}

TEST_F(WebDatasetTest, ADamagedGzipFileIsAnError) {
  const std::string good =
      Gzip(ShardBytes(ShardFormat::kTar, {{std::string(5000, 'x'), 0}}));
  Write("a.tar", good.substr(0, good.size() / 2));
  EXPECT_THAT([&] { Open(); }, DataError("a.tar", "truncated"));
  std::string bad = good;
  bad[bad.size() - 7] ^= 1;  // its checksum
  Write("a.tar", bad);
  EXPECT_THAT([&] { Open(); }, DataError("a.tar", "damaged"));
  Write("a.tar", Gzip("no archive"));
  EXPECT_THAT([&] { Open(); }, DataError("a.tar", "ends within a header"));
}

TEST_F(WebDatasetTest, AGzipBombIsAnError) {
  Write("a.tar", Gzip(std::string(65 << 20, '\0')));
  EXPECT_THAT([&] { Open(); }, DataError("a.tar", "more than 100 times its"));
}

TEST_F(WebDatasetTest, AGzipFileMayHaveSeveralStreamsAndPadding) {
  const std::string tar = ShardBytes(ShardFormat::kTar, {{"image", 0}});
  Write("a.tar", Gzip(tar.substr(0, 700)) + Gzip(tar.substr(700)) +
                     std::string(100, '\0'));
  EXPECT_THAT(ListSamples(Open()), ElementsAre("0 image"));
}

TEST(Tar, ReadsLongNamesAndLargeSizes) {
  const std::string name(150, 'n');
  const std::string long_name = name + "/" + name;
  EXPECT_THAT(FilesOf(Member("././@LongLink", long_name, 'L') +
                      Member("short", "gnu") + Member("plain", "x")),
              ElementsAre(long_name + " gnu", "plain x"));
  const std::string pax = fmt::format("{} path={}\n", 10 + name.size(), name) +
                          "9 size=3\n14 mtime=1.25\n";
  EXPECT_THAT(
      FilesOf(Member("pax", pax, 'x') + TarHeader("short", '0', "0") +
              std::string("pax").append(509, '\0') + Member("plain", "x")),
      ElementsAre(name + " pax", "plain x"));
  std::string prefixed = TarHeader("file", '0', "00000000000");
  prefixed.replace(345, 3, "a/b");
  SetSum(prefixed);
  EXPECT_THAT(FilesOf(prefixed), ElementsAre("a/b/file "));
  // A size in base 256, and no padding at the end.
  EXPECT_THAT(FilesOf(TarHeader("file", '0',
                                std::string("\x80\0\0\0\0\0\0\0\0\0\0\2", 12)) +
                      "ab"),
              ElementsAre("file ab"));
}

TEST(Tar, DamageIsAnError) {
  const std::string good = Member("name", "data");
  const auto read = [](const std::string& archive) {
    return [archive] { FilesOf(archive); };
  };
  EXPECT_THAT(read(good.substr(0, 100)),
              DataError("archive", "ends within a header at 0"));
  EXPECT_THAT(read(good.substr(0, kBlock + 2)),
              DataError("archive",
                        "ends within name: expected 4 bytes, got "
                        "2"));
  std::string bad = good;
  bad[3] ^= 1;
  EXPECT_THAT(read(bad), DataError("archive", "expected a header at 0"));
  EXPECT_THAT(read(good + std::string(kBlock, 'x')),
              DataError("archive", "expected a header at 1024"));
  EXPECT_THAT(read(TarHeader("n", '0', std::string(12, '\xff'))),
              DataError("archive", "expected a header at 0"));
  EXPECT_THAT(read(TarHeader("n", 'L', "77777777777")),
              DataError("archive", "ends within n"));
  EXPECT_THAT(read(Member("n", std::string(1 << 21, 'x'), 'L')),
              DataError("archive", "expected a name of at most 1048576 bytes"));
  for (const char* attributes :
       {"x", "9 size=x\n", "4 a\n", "99 a=b\n", "3 \n"}) {
    EXPECT_THAT(read(Member("n", attributes, 'x')),
                DataError("archive", "expected pax attributes at 512"))
        << attributes;
  }
}

}  // namespace
}  // namespace fusor::runtime
