#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/decode.h"
#include "tests/testing/image_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The columns of FUSOR_TEST_DATA/jpeg_cases/expected.csv that this test uses.
struct Case {
  std::string path;
  std::string width;
  std::string height;
  std::string outcome;  // ok, truncated, error, not_jpeg:PNG
  std::string sha256;   // of the RGB bytes decoded by Pillow
};

std::vector<Case> ReadTable(const std::string& path) {
  std::ifstream table(path);
  std::vector<Case> cases;
  std::string line;
  std::getline(table, line);  // header
  while (std::getline(table, line)) {
    std::stringstream stream(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(stream, cell, ',');) {
      cells.push_back(cell);
    }
    cells.resize(9);
    if (cells[8].starts_with("cmyk:")) cells[8].erase(0, 5);
    cases.push_back({cells[0], cells[2], cells[3], cells[7], cells[8]});
  }
  return cases;
}

std::string Sha256(const Image& image) {
  const fusor::test::TemporaryFolder folder;
  fusor::testing::WriteTestFile(folder / "pixels", image.pixels);
  FILE* pipe = popen(("sha256sum " + (folder / "pixels")).c_str(), "r");
  char digest[64] = {};
  const size_t count = std::fread(digest, 1, sizeof(digest), pipe);
  pclose(pipe);
  return std::string(digest, count);
}

TEST(DecodeRealFiles, PixelsEqualPillows) {
  const char* folder = std::getenv("FUSOR_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "FUSOR_TEST_DATA is not set";
  const std::string root = folder;
  int hashes = 0;
  for (const Case& c : ReadTable(root + "/jpeg_cases/expected.csv")) {
    SCOPED_TRACE(c.path);
    std::vector<uint8_t> bytes;
    ReadFile(root + "/" + c.path, ErrorCode::kData, bytes);
    if (c.outcome == "error" || c.outcome == "truncated") {
      EXPECT_THAT([&] { DecodeImage(bytes, c.path); },
                  ThrowsMessage<Error>(
                      AllOf(HasSubstr(c.path),
                            HasSubstr(c.outcome == "error" ? "" : c.outcome))));
      continue;
    }
    const Image image = DecodeImage(bytes, c.path);
    if (c.outcome != "ok") continue;  // a PNG without a stored hash
    EXPECT_EQ(std::to_string(image.width), c.width);
    EXPECT_EQ(std::to_string(image.height), c.height);
    EXPECT_EQ(Sha256(image), c.sha256);
    ++hashes;

    const Region middle = {image.width / 5, image.height / 5,
                           image.width / 2 + 1, image.height / 2 + 1};
    Image part;
    OpenImage(bytes, c.path)->Read(middle, part);
    for (int y = 0; y < middle.height; ++y) {
      ASSERT_TRUE(std::equal(part.Row(y), part.Row(y) + part.row_bytes(),
                             image.Row(middle.y + y) + 3 * middle.x))
          << "row " << y;
    }
  }
  EXPECT_GE(hashes, 18);
}

}  // namespace
}  // namespace fusor::runtime
