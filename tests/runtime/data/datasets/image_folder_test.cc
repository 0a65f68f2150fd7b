#include "runtime/data/datasets/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "tests/testing/data_error.h"
#include "tests/testing/image_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::test::TemporaryFolder;
using ::fusor::testing::DataError;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class ImageFolderTest : public ::testing::Test {
 protected:
  // Creates files. Each contains its own path.
  void Make(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      fusor::testing::WriteTestFile(
          folder_ / path, std::vector<uint8_t>(path.begin(), path.end()));
    }
  }

  // Lists the samples as "label path".
  static std::vector<std::string> Samples(const ImageFolder& folder) {
    std::vector<std::string> samples;
    for (int64_t i = 0; i < folder.size(); ++i) {
      samples.push_back(std::to_string(folder.Label(i)) + " " +
                        folder.Name(i).substr(folder.path().size() + 1));
    }
    return samples;
  }

  TemporaryFolder folder_;
};

TEST_F(ImageFolderTest, ClassesAndFilesAreInBytewiseOrder) {
  Make({"b/1.jpg", "a/10.png", "a/9.JPEG", "B/x.webp", "\xc3\xa9/y.tif"});
  const ImageFolder folder(folder_.path());
  EXPECT_THAT(folder.class_names(), ElementsAre("B", "a", "b", "\xc3\xa9"));
  EXPECT_THAT(Samples(folder),
              ElementsAre("0 B/x.webp", "1 a/10.png", "1 a/9.JPEG", "2 b/1.jpg",
                          "3 \xc3\xa9/y.tif"));
  EXPECT_THAT(folder.warnings(), IsEmpty());
}

TEST_F(ImageFolderTest, DescendsInTorchvisionsOrder) {
  Make({"a/z.jpg", "a/s/2.jpg", "a/s/t/1.jpg", "a/s-t/3.jpg", "b/0.jpg"});
  EXPECT_THAT(Samples(ImageFolder(folder_.path())),
              ElementsAre("0 a/z.jpg", "0 a/s/2.jpg", "0 a/s-t/3.jpg",
                          "0 a/s/t/1.jpg", "1 b/0.jpg"));
}

TEST_F(ImageFolderTest, OtherFilesAreLeftOut) {
  Make({"a/1.jpg", "a/readme.txt", "a/jpg", "a/.2.jpg", ".git/3.jpg", "b/4.jpg",
        "top.jpg"});
  EXPECT_THAT(Samples(ImageFolder(folder_.path())),
              ElementsAre("0 a/1.jpg", "1 b/4.jpg"));
}

TEST_F(ImageFolderTest, LinksAreFollowed) {
  Make({"a/1.jpg", "b/2.jpg"});
  std::filesystem::create_directory_symlink(folder_ / "b", folder_ / "c");
  std::filesystem::create_symlink(folder_ / "b/2.jpg", folder_ / "a/3.jpg");
  EXPECT_THAT(Samples(ImageFolder(folder_.path())),
              ElementsAre("0 a/1.jpg", "0 a/3.jpg", "1 b/2.jpg", "2 c/2.jpg"));
}

TEST_F(ImageFolderTest, ALinkInACircleIsAnError) {
  Make({"a/s/1.jpg"});
  std::filesystem::create_directory_symlink(folder_ / "a", folder_ / "a/s/up");
  EXPECT_THAT([&] { ImageFolder folder(folder_.path()); },
              DataError("a/s/up", "links to a folder above"));
}

TEST_F(ImageFolderTest, KeepsTheFirstOfEachClass) {
  Make({"a/1.jpg", "a/2.jpg", "a/3.jpg", "b/4.jpg"});
  EXPECT_THAT(Samples(ImageFolder(folder_.path(), 2)),
              ElementsAre("0 a/1.jpg", "0 a/2.jpg", "1 b/4.jpg"));
}

TEST_F(ImageFolderTest, ReadsTheFile) {
  Make({"a/1.jpg", "b/2.jpg"});
  const ImageFolder folder(folder_.path());
  std::vector<uint8_t> bytes;
  folder.Read(1, bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "b/2.jpg");
  std::filesystem::remove(folder_ / "b/2.jpg");
  EXPECT_THAT([&] { folder.Read(1, bytes); },
              DataError(folder_ / "b/2.jpg", "No such file"));
}

TEST_F(ImageFolderTest, OneClassIsAllowedWithAWarning) {
  Make({"only/1.jpg"});
  EXPECT_THAT(ImageFolder(folder_.path()).warnings(),
              ElementsAre(AllOf(HasSubstr(folder_.path()),
                                HasSubstr("only one class, 'only'"))));
}

TEST_F(ImageFolderTest, NoClassFolderIsAnError) {
  EXPECT_THAT([&] { ImageFolder folder(folder_.path()); },
              DataError(folder_.path(), "expected one folder per class"));
  Make({"1.jpg", "2.jpg"});
  EXPECT_THAT([&] { ImageFolder folder(folder_.path()); },
              DataError(folder_.path(), "2 images"));
}

TEST_F(ImageFolderTest, AnEmptyClassIsAnError) {
  Make({"a/1.jpg", "b/2.txt"});
  EXPECT_THAT([&] { ImageFolder folder(folder_.path()); },
              DataError(folder_.path(),
                        "no image in 1 of 2 class folders, "
                        "first 'b'"));
}

TEST_F(ImageFolderTest, AMissingFolderIsAnError) {
  EXPECT_THAT([&] { ImageFolder folder(folder_ / "none"); },
              DataError(folder_ / "none", "No such file"));
}

TEST_F(ImageFolderTest, AnUnreadableFolderIsAnError) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  Make({"a/1.jpg", "b/2.jpg"});
  std::filesystem::permissions(folder_ / "b", std::filesystem::perms::none);
  EXPECT_THAT([&] { ImageFolder folder(folder_.path()); },
              DataError(folder_ / "b", "Permission denied"));
  std::filesystem::permissions(folder_ / "b",
                               std::filesystem::perms::owner_all);
}

TEST_F(ImageFolderTest, DifferentClassesOfTrainAndValAreAnError) {
  Make({"t/a/1.jpg", "t/b/1.jpg", "u/a/1.jpg", "u/c/1.jpg", "v/a/1.jpg"});
  const ImageFolder train(folder_ / "t");
  EXPECT_NO_THROW(CheckSameClasses(train, train));
  EXPECT_THAT([&] { CheckSameClasses(train, ImageFolder(folder_ / "u")); },
              ThrowsMessage<Error>(
                  HasSubstr("from class 1 on: expected 'b', got 'c'")));
  EXPECT_THAT([&] { CheckSameClasses(train, ImageFolder(folder_ / "v")); },
              ThrowsMessage<Error>(HasSubstr("expected 'b', got none")));
}

}  // namespace
}  // namespace fusor::runtime
