#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ir/support/error.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::inspect {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DumpSinkTest : public ::testing::Test {
 protected:
  DumpSinkTest() { fs::remove_all(folder_); }
  ~DumpSinkTest() override { fs::remove_all(folder_); }

  // Returns the error of opening the folder for a dump.
  static std::string Rejection(const fs::path& folder) {
    try {
      FolderSink sink(folder.string());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.what();
    }
    return "";
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) /
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(DumpSinkTest, MakesFoldersAndLeavesNothingButTheFiles) {
  FolderSink sink((folder_ / "deep").string());
  sink.Write("m0000.x/plan.txt", "the plan");
  std::ifstream in(folder_ / "deep/m0000.x/plan.txt");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), "the plan");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "deep/m0000.x"), {}),
            1);
}

TEST_F(DumpSinkTest, RejectsWhatIsNotAFolder) {
  EXPECT_THAT(Rejection("/dev/null/dump"),
              AllOf(HasSubstr("/dev/null/dump"), HasSubstr("ot a directory")));
}

TEST_F(DumpSinkTest, RejectsAFolderWithAnotherDump) {
  FolderSink(folder_.string()).Write("manifest.json", "{}");
  EXPECT_THAT(Rejection(folder_),
              HasSubstr("contains the dump of another run"));
}

TEST_F(DumpSinkTest, PutsAPathAboveEachPieceOfAStream) {
  std::ostringstream stream;
  StreamSink sink(stream);
  sink.Write("a.txt", "one");
  sink.Write("b.txt", "two\n");
  EXPECT_EQ(stream.str(), "// a.txt\none\n// b.txt\ntwo\n");
}

TEST_F(DumpSinkTest, KeepsFileNamesShortPlainAndDifferent) {
  EXPECT_EQ(FileName("resnet50-v1.5"), "resnet50-v1.5");
  EXPECT_EQ(FileName("a/b c"), "a_b_c");
  const std::string common(300, 'x');
  const std::string first = FileName(common + "1");
  EXPECT_NE(first, FileName(common + "2"));
  EXPECT_LE(first.size(), 200);
  // Names must still be valid with number, suffix and temporary name.
  FolderSink sink(folder_.string());
  sink.Write("m0000." + first + "/0000." + first + ".ll", "text");
  EXPECT_TRUE(fs::exists(folder_ / ("m0000." + first)));
}

}  // namespace
}  // namespace fusor::inspect
