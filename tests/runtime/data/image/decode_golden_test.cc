// Compares small files of all formats with Pillow. make_image_files.py writes
// them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/decode.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::Bytes;
using ::fusor::testing::Cut;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct GoldenFile {
  std::string name;
  Bytes bytes;
  Image image;
};

std::vector<GoldenFile> GoldenFiles() {
  const std::string folder = FUSOR_GOLDEN_DIR "/images/";
  Bytes pixels;
  ReadFile(folder + "pixels.bin", ErrorCode::kInternal, pixels);
  std::ifstream table(folder + "cases.txt");
  std::vector<GoldenFile> files;
  auto next = pixels.begin();
  std::string name;
  int width = 0;
  int height = 0;
  while (table >> name >> width >> height) {
    GoldenFile& file = files.emplace_back();
    file.name = name;
    ReadFile(folder + name, ErrorCode::kInternal, file.bytes);
    file.image.SetSize(width, height);
    const auto size = static_cast<std::ptrdiff_t>(file.image.pixels.size());
    FUSOR_ASSERT(pixels.end() - next >= size, "pixels.bin is short");
    std::copy(next, next + size, file.image.pixels.begin());
    next += size;
  }
  FUSOR_ASSERT(next == pixels.end() && !files.empty(),
               "cases.txt does not fit pixels.bin");
  return files;
}

TEST(DecodeGolden, PixelsArePillows) {
  for (const GoldenFile& file : GoldenFiles()) {
    const Image image = DecodeImage(file.bytes, file.name);
    EXPECT_EQ(image.width, file.image.width) << file.name;
    EXPECT_EQ(image.height, file.image.height) << file.name;
    EXPECT_EQ(image.pixels, file.image.pixels) << file.name;
  }
}

TEST(DecodeGolden, RegionsAreCutFromTheWholeImage) {
  for (const GoldenFile& file : GoldenFiles()) {
    const auto reader = OpenImage(file.bytes, file.name);
    Image part;
    for (const Region region :
         {Region{3, 4, 9, 5}, {0, 0, 1, 1}, {17, 12, 1, 1}}) {
      reader->Read(region, part);
      EXPECT_EQ(part.pixels, Cut(file.image, region).pixels) << file.name;
    }
  }
}

TEST(DecodeGolden, EveryTruncationIsAnErrorOfOneLine) {
  for (const GoldenFile& file : GoldenFiles()) {
    // The further frames of an animation are not read.
    const bool animated = file.name == "animated.gif";
    for (size_t length = 1; length < file.bytes.size(); ++length) {
      const std::span<const uint8_t> cut(file.bytes.data(), length);
      try {
        DecodeImage(cut, "cut");
        EXPECT_TRUE(animated && length > file.bytes.size() / 4)
            << file.name << " " << length;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("image cut: "), Not(HasSubstr("\n"))));
        if (length > 60) {
          EXPECT_THAT(error.what(), HasSubstr("truncated")) << file.name;
        }
      }
    }
  }
}

TEST(DecodeGolden, DamagedBytesNeverCrash) {
  Image part;
  for (const GoldenFile& file : GoldenFiles()) {
    for (size_t at = 0; at < file.bytes.size(); ++at) {
      Bytes damaged = file.bytes;
      damaged[at] ^= static_cast<uint8_t>(1 + at * 7 % 255);
      try {
        const auto reader = OpenImage(damaged, "bad", {.max_pixels = 1 << 20});
        reader->Read(WholeImage(reader->size()), part);
        reader->Read({0, 0, 1, 1}, part);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
      }
    }
  }
}

TEST(DecodeGolden, TooManyPixelsAreRejectedBeforeDecoding) {
  for (const GoldenFile& file : GoldenFiles()) {
    const int pixels = file.image.width * file.image.height;
    EXPECT_NO_THROW(OpenImage(file.bytes, "x", {.max_pixels = pixels}));
    EXPECT_THAT([&] { OpenImage(file.bytes, "x", {.max_pixels = pixels - 1}); },
                ThrowsMessage<Error>(HasSubstr("expected at most")))
        << file.name;
  }
}

// Pillow clips such levels at 255.
TEST(DecodeGolden, GreyOf16BitsIsScaled) {
  const std::string text("P5 3 1 65535\n\x00\x00\xff\xff\x80\x00", 19);
  EXPECT_EQ(DecodeImage(Bytes(text.begin(), text.end()), "x").pixels,
            (Bytes{0, 0, 0, 255, 255, 255, 128, 128, 128}));
}

TEST(DecodeGolden, UnsupportedKindsAreNamed) {
  const auto decode = [](std::string_view text) {
    DecodeImage(Bytes(text.begin(), text.end()), "x");
  };
  const auto fails = [](const char* text) {
    return ThrowsMessage<Error>(HasSubstr(text));
  };
  EXPECT_THAT([&] { decode("P3 1 1 255 1 2 3"); }, fails("got text PPM"));
  EXPECT_THAT([&] { decode("II*\0abcd"); }, fails("got TIFF"));
  EXPECT_THAT([&] { decode("P6 1 x 255\n"); },
              fails("broken PPM: expected a number in the header"));
  EXPECT_THAT([&] { decode("P5 1 1 70000\n1"); },
              fails("a greatest level from 1 to 65535, got 70000"));
  EXPECT_THAT([&] { decode("P5 0 1 255\n1"); },
              fails("expected 1 or more pixels a side, got 0x1"));
  for (const GoldenFile& file : GoldenFiles()) {
    if (file.name != "runs.bmp") continue;
    Bytes rle4 = file.bytes;
    rle4[28] = 4;  // bits
    rle4[30] = 2;  // compression
    EXPECT_THAT([&] { DecodeImage(rle4, "x"); },
                fails("BMP of 4 bits per pixel with compression 2"));
  }
}

}  // namespace
}  // namespace fusor::runtime
