#include "ir/support/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <new>

namespace fusor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::ThrowsMessage;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "fusor_file_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  int Entries() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(folder_)) {
      ++count;
    }
    return count;
  }
  static std::string Read(const std::string& path) {
    std::vector<uint8_t> bytes = {1, 2, 3};
    ReadFile(path, ErrorCode::kData, bytes);
    return {bytes.begin(), bytes.end()};
  }

  std::string folder_;
};

TEST_F(FileTest, ReadsBackWhatWasWritten) {
  const std::string text("a\0b\n", 4);
  WriteFileAtomically(Path("file"), text, ErrorCode::kData);
  EXPECT_EQ(Read(Path("file")), text);
  WriteFileAtomically(Path("file"), "", ErrorCode::kData);
  EXPECT_EQ(Read(Path("file")), "");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, ReadNamesFileAndReason) {
  EXPECT_THAT([&] { Read(Path("absent")); },
              ThrowsMessage<Error>(
                  AllOf(HasSubstr(Path("absent")), HasSubstr("No such file"))));
  EXPECT_THAT([&] { Read(folder_); },
              ThrowsMessage<Error>(HasSubstr("not a regular file")));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT([&] { Read(Path("fifo")); },
              ThrowsMessage<Error>(HasSubstr("not a regular file")));
}

TEST_F(FileTest, DurableWritesJoinTheirPieces) {
  const auto write = [&](const char* name, bool fails) {
    WriteFileDurably(
        Path(name),
        [&](const AppendBytes& append) {
          for (const char* piece : {"one ", "", "two"}) append(piece);
          if (fails) throw std::bad_alloc();
        },
        ErrorCode::kCheckpoint);
  };
  write("file", false);
  EXPECT_EQ(Read(Path("file")), "one two");
  EXPECT_THAT([&] { write("no/x", false); },
              ThrowsMessage<Error>(HasSubstr("No such file")));
  EXPECT_THROW(write("file", true), std::bad_alloc);
  EXPECT_EQ(Read(Path("file")), "one two");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, RangesOfAFileAreReadWhole) {
  WriteFileAtomically(Path("file"), "0123456789", ErrorCode::kData);
  const InputFile file(Path("file"), ErrorCode::kData);
  EXPECT_EQ(file.size(), 10);
  std::vector<uint8_t> bytes(4);
  file.Read(3, bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "3456");
  std::filesystem::resize_file(Path("file"), 6);
  EXPECT_THAT([&] { file.Read(3, bytes); },
              ThrowsMessage<Error>(AllOf(HasSubstr(Path("file")),
                                         HasSubstr("has become shorter"))));
}

TEST_F(FileTest, LinksStayAndLeadToWhatIsWritten) {
  std::filesystem::create_directory(Path("there"));
  std::filesystem::create_symlink("there/file", Path("link"));
  std::filesystem::create_symlink(Path("link"), Path("second"));
  for (const char* text : {"new", "old file replaced"}) {
    CheckWritable(Path("second"), ErrorCode::kUsage);
    WriteFileAtomically(Path("second"), text, ErrorCode::kUsage);
    EXPECT_EQ(Read(Path("there/file")), text);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(Path("second")));

  std::filesystem::create_symlink("loop", Path("loop"));
  EXPECT_THAT([&] { WriteFileAtomically(Path("loop"), "", ErrorCode::kUsage); },
              ThrowsMessage<Error>(AllOf(HasSubstr(Path("loop")),
                                         HasSubstr("Too many levels"))));
}

// Uses a link, since root could rename over /dev/null itself.
TEST_F(FileTest, DevicesAndPipesAreWrittenIntoAndStay) {
  std::filesystem::create_symlink("/dev/null", Path("null"));
  CheckWritable(Path("null"), ErrorCode::kUsage);
  WriteFileAtomically(Path("null"), "text", ErrorCode::kUsage);
  EXPECT_TRUE(std::filesystem::is_character_file(Path("null")));
  std::filesystem::remove(Path("null"));

  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const int reader = open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  CheckWritable(Path("pipe"), ErrorCode::kUsage);
  WriteFileAtomically(Path("pipe"), "text", ErrorCode::kUsage);
  char bytes[8] = {};
  EXPECT_EQ(read(reader, bytes, sizeof(bytes)), 4);
  EXPECT_STREQ(bytes, "text");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(Path("pipe")));
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FileTest, AFullDeviceIsAnError) {
  std::filesystem::create_symlink("/dev/full", Path("full"));
  EXPECT_THAT(
      [&] { WriteFileAtomically(Path("full"), "text", ErrorCode::kUsage); },
      ThrowsMessage<Error>(
          AllOf(HasSubstr(Path("full")), HasSubstr("No space left"))));
}

TEST_F(FileTest, FailedWriteLeavesNothingBehind) {
  // A folder prevents the rename.
  std::filesystem::create_directories(Path("taken/inner"));
  EXPECT_THAT(
      [&] { WriteFileAtomically(Path("taken"), "x", ErrorCode::kCheckpoint); },
      ::testing::Throws<Error>(Property(&Error::code, ErrorCode::kCheckpoint)));
  EXPECT_EQ(Entries(), 1);
  EXPECT_THAT(
      [&] { WriteFileAtomically(Path("no/file"), "x", ErrorCode::kData); },
      ThrowsMessage<Error>(HasSubstr("No such file")));
}

TEST_F(FileTest, CheckingThatAFileCanBeWrittenLeavesItAlone) {
  WriteFileAtomically(Path("file"), "mine", ErrorCode::kData);
  CheckWritable(Path("file"), ErrorCode::kUsage);
  CheckWritable(Path("new"), ErrorCode::kUsage);
  EXPECT_EQ(Read(Path("file")), "mine");
  EXPECT_EQ(Entries(), 1);
  EXPECT_THAT([&] { CheckWritable(folder_, ErrorCode::kUsage); },
              ThrowsMessage<Error>(HasSubstr("Is a directory")));
  EXPECT_THAT([&] { CheckWritable(Path("no/file"), ErrorCode::kUsage); },
              ThrowsMessage<Error>(HasSubstr("No such file")));
  EXPECT_THAT([&] { CheckWritable(Path("file/x"), ErrorCode::kUsage); },
              ThrowsMessage<Error>(HasSubstr("Not a directory")));
}

}  // namespace
}  // namespace fusor
