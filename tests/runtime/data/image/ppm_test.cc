#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/image_writer.h"
#include "tests/testing/image_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

TEST(Ppm, HoldsTheHeadingAndThePixels) {
  const fusor::test::TemporaryFolder folder;
  Image image;
  image.SetSize(2, 1);
  image.pixels = {1, 2, 3, 0, 255, 10};
  WritePpm(folder / "x.ppm", image);
  std::vector<uint8_t> bytes;
  ReadFile(folder / "x.ppm", ErrorCode::kData, bytes);
  const std::string expected("P6\n2 1\n255\n\1\2\3\0\xff\n", 17);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), expected);
}

TEST(Ppm, NamesAFolderThatIsNotThere) {
  const fusor::test::TemporaryFolder folder;
  EXPECT_THAT([&] { WritePpm(folder / "no/x.ppm", Image()); },
              ::testing::ThrowsMessage<Error>(
                  ::testing::HasSubstr(folder / "no/x.ppm")));
}

}  // namespace
}  // namespace fusor::runtime
