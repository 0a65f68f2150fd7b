#include "runtime/data/image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

// jpeglib.h needs the declarations of <cstdio>.
#include <jpeglib.h>

#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::Bytes;
using ::fusor::testing::Cut;
using ::fusor::testing::EncodeCmykJpeg;
using ::fusor::testing::EncodeJpeg;
using ::fusor::testing::EncodePng;
using ::fusor::testing::JpegOptions;
using ::fusor::testing::MakePicture;
using ::fusor::testing::PngOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Property;
using ::testing::Throws;

// Matches a one-line kData error that contains all of `parts`.
auto DataError(const std::vector<std::string>& parts) {
  std::vector<::testing::Matcher<std::string>> matchers = {
      Not(HasSubstr("\n"))};
  for (const std::string& part : parts) matchers.push_back(HasSubstr(part));
  const auto text = [](const char* what) { return std::string(what); };
  return Throws<Error>(AllOf(
      Property(&Error::code, ErrorCode::kData),
      Property(&Error::what,
               ::testing::ResultOf(text, ::testing::AllOfArray(matchers)))));
}

// Decodes to RGB with libjpeg only.
Image DecodePlainly(const Bytes& bytes) {
  jpeg_decompress_struct cinfo = {};
  jpeg_error_mgr errors = {};
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, bytes.data(), bytes.size());
  jpeg_read_header(&cinfo, TRUE);
  cinfo.out_color_space = JCS_RGB;
  jpeg_start_decompress(&cinfo);
  Image image;
  image.SetSize(static_cast<int>(cinfo.output_width),
                static_cast<int>(cinfo.output_height));
  while (cinfo.output_scanline < cinfo.output_height) {
    JSAMPROW row = image.Row(static_cast<int>(cinfo.output_scanline));
    jpeg_read_scanlines(&cinfo, &row, 1);
  }
  jpeg_destroy_decompress(&cinfo);
  return image;
}

Region RandomRegion(ImageSize size, uint32_t index) {
  const auto bits = Philox({index, 0, 0, 0}, 99);
  Region region;
  region.width = 1 + static_cast<int>(bits[0] % size.width);
  region.height = 1 + static_cast<int>(bits[1] % size.height);
  region.x = static_cast<int>(bits[2] % (size.width - region.width + 1));
  region.y = static_cast<int>(bits[3] % (size.height - region.height + 1));
  return region;
}

std::vector<JpegOptions> AllKinds() {
  std::vector<JpegOptions> kinds;
  const int factors[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}};
  for (const auto& [h, v] : factors) {
    kinds.push_back({.luma_h = h, .luma_v = v});
    kinds.push_back({.luma_h = h, .luma_v = v, .progressive = true});
    kinds.push_back({.luma_h = h, .luma_v = v, .restart_rows = 1});
  }
  kinds.push_back({.grey = true});
  kinds.push_back({.grey = true, .progressive = true});
  return kinds;
}

std::string Describe(const JpegOptions& options) {
  return fmt::format("{}x{}{}{}{}", options.luma_h, options.luma_v,
                     options.grey ? " grey" : "",
                     options.progressive ? " progressive" : "",
                     options.restart_rows > 0 ? " restarts" : "");
}

TEST(Decode, JpegEqualsLibjpeg) {
  for (const JpegOptions& options : AllKinds()) {
    for (const ImageSize size : {ImageSize{1, 1}, {3, 2}, {17, 33}, {95, 64}}) {
      const Bytes bytes =
          EncodeJpeg(MakePicture(size.width, size.height, 1), options);
      const Image image = DecodeImage(bytes, "a.jpg");
      EXPECT_EQ((ImageSize{image.width, image.height}), size);
      EXPECT_EQ(image.pixels, DecodePlainly(bytes).pixels) << Describe(options);
    }
  }
}

TEST(Decode, JpegRegionEqualsCutOfFullDecode) {
  for (const JpegOptions& options : AllKinds()) {
    for (const ImageSize size :
         {ImageSize{7, 50}, {50, 5}, {131, 97}, {200, 160}}) {
      const Bytes bytes =
          EncodeJpeg(MakePicture(size.width, size.height, 2), options);
      const Image whole = DecodePlainly(bytes);
      Image part;
      for (uint32_t i = 0; i < 60; ++i) {
        const Region region = RandomRegion(size, i);
        OpenImage(bytes, "a.jpg")->Read(region, part);
        ASSERT_EQ(part.pixels, Cut(whole, region).pixels)
            << Describe(options) << " " << size.width << "x" << size.height
            << ": " << region.width << "x" << region.height << " at "
            << region.x << ", " << region.y;
      }
    }
  }
}

TEST(Decode, EveryRowAndColumnOfASubsampledJpegCanBeginARegion) {
  const ImageSize size = {70, 70};
  const Bytes bytes = EncodeJpeg(MakePicture(size.width, size.height, 3));
  const Image whole = DecodePlainly(bytes);
  const auto reader = OpenImage(bytes, "a.jpg");
  Image part;
  for (int begin = 0; begin < 70; ++begin) {
    for (int length = 1; length <= std::min(20, 70 - begin); ++length) {
      const Region region = {begin, begin, length, length};
      reader->Read(region, part);
      ASSERT_EQ(part.pixels, Cut(whole, region).pixels)
          << length << " from " << begin;
    }
  }
}

TEST(Decode, ReaderCanReadAgain) {
  const Bytes jpeg = EncodeJpeg(MakePicture(40, 30, 4));
  const Bytes png = EncodePng(MakePicture(40, 30, 4));
  for (const Bytes& bytes : {jpeg, png}) {
    const auto reader = OpenImage(bytes, "a");
    Image first;
    Image second;
    Image whole;
    reader->Read({5, 6, 7, 8}, first);
    reader->Read(WholeImage(reader->size()), whole);
    reader->Read({5, 6, 7, 8}, second);
    EXPECT_EQ(first.pixels, second.pixels);
    EXPECT_EQ(first.pixels, Cut(whole, {5, 6, 7, 8}).pixels);
  }
}

TEST(Decode, CmykFollowsPillowsFormula) {
  // JPEG of quality 100 preserves a block of one colour.
  const uint8_t stored[4] = {200, 100, 30, 180};
  Bytes cmyk;
  for (int i = 0; i < 16 * 16; ++i) {
    cmyk.insert(cmyk.end(), std::begin(stored), std::end(stored));
  }
  const Image image = DecodeImage(EncodeCmykJpeg(cmyk, 16, 16), "a.jpg");
  // (255 - C) (255 - K) / 255 with C = 255 - 200, ..., K = 255 - 180.
  EXPECT_NEAR(image.pixels[0], 200 * 180 / 255, 1);
  EXPECT_NEAR(image.pixels[1], 100 * 180 / 255, 1);
  EXPECT_NEAR(image.pixels[2], 30 * 180 / 255, 1);
}

TEST(Decode, CmykRegionEqualsCutOfFullDecode) {
  Bytes cmyk(60 * 50 * 4);
  for (size_t i = 0; i < cmyk.size(); ++i) {
    cmyk[i] = static_cast<uint8_t>(i * 37 % 251);
  }
  const Bytes bytes = EncodeCmykJpeg(cmyk, 60, 50);
  const Image whole = DecodeImage(bytes, "a.jpg");
  Image part;
  OpenImage(bytes, "a.jpg")->Read({21, 13, 30, 20}, part);
  EXPECT_EQ(part.pixels, Cut(whole, {21, 13, 30, 20}).pixels);
}

TEST(Decode, PngRgbIsLossless) {
  const Image image = MakePicture(37, 21, 5);
  EXPECT_EQ(DecodeImage(EncodePng(image), "a.png").pixels, image.pixels);
  const Bytes interlaced =
      EncodePng(image.pixels, 37, 21, {.interlaced = true});
  EXPECT_EQ(DecodeImage(interlaced, "a.png").pixels, image.pixels);
}

TEST(Decode, PngRegionEqualsCutOfFullDecode) {
  const Image image = MakePicture(37, 21, 5);
  const Bytes bytes = EncodePng(image.pixels, 37, 21, {.interlaced = true});
  Image part;
  OpenImage(bytes, "a.png")->Read({30, 2, 7, 19}, part);
  EXPECT_EQ(part.pixels, Cut(image, {30, 2, 7, 19}).pixels);
}

TEST(Decode, PngOfEveryColourTypeBecomesRgb) {
  const auto decode = [](const Bytes& row, int width, PngOptions options) {
    return DecodeImage(EncodePng(row, width, 1, options), "a.png").pixels;
  };
  // Grey with 1, 4, 8 and 16 bits, grey with alpha, RGBA, 16-bit RGB, palette.
  EXPECT_EQ(decode({0b01000000}, 2, {.colour_type = 0, .bits = 1}),
            (Bytes{0, 0, 0, 255, 255, 255}));
  EXPECT_EQ(decode({0x3f}, 2, {.colour_type = 0, .bits = 4}),
            (Bytes{0x33, 0x33, 0x33, 255, 255, 255}));
  EXPECT_EQ(decode({9}, 1, {.colour_type = 0}), (Bytes{9, 9, 9}));
  EXPECT_EQ(decode({7, 200}, 1, {.colour_type = 0, .bits = 16}),
            (Bytes{7, 7, 7}));
  EXPECT_EQ(decode({5, 0}, 1, {.colour_type = 4}), (Bytes{5, 5, 5}));
  EXPECT_EQ(decode({1, 2, 3, 0}, 1, {.colour_type = 6}), (Bytes{1, 2, 3}));
  EXPECT_EQ(decode({1, 250, 2, 0, 3, 9}, 1, {.colour_type = 2, .bits = 16}),
            (Bytes{1, 2, 3}));
  EXPECT_EQ(decode({1, 0}, 2,
                   {.colour_type = 3, .palette = {10, 11, 12, 20, 21, 22}}),
            (Bytes{20, 21, 22, 10, 11, 12}));
}

TEST(Decode, FormatIsDecidedByContent) {
  const Image image = MakePicture(20, 10, 6);
  EXPECT_EQ(DecodeImage(EncodePng(image), "named.jpg").pixels, image.pixels);
  EXPECT_EQ(ReadImageSize(EncodeJpeg(image), "named.png"), (ImageSize{20, 10}));
}

TEST(Decode, OtherContentIsNamed) {
  const auto decode = [](std::string_view text) {
    DecodeImage(Bytes(text.begin(), text.end()), "dir/x.jpg");
  };
  EXPECT_THAT([&] { decode(""); }, DataError({"dir/x.jpg", "empty"}));
  EXPECT_THAT([&] { decode("GIF89a...."); }, DataError({"dir/x.jpg", "GIF"}));
  EXPECT_THAT([&] { decode("RIFF1234WEBPVP8 "); }, DataError({"WebP"}));
  EXPECT_THAT([&] { decode("hello"); }, DataError({"dir/x.jpg", "5 bytes"}));
}

TEST(Decode, EveryTruncationIsAnError) {
  const Image picture = MakePicture(40, 36, 7);
  const std::vector<Bytes> files = {
      EncodeJpeg(picture), EncodeJpeg(picture, {.progressive = true}),
      EncodeJpeg(picture, {.luma_v = 1, .restart_rows = 1}),
      EncodePng(picture)};
  Image part;
  for (const Bytes& bytes : files) {
    for (size_t length = 0; length < bytes.size(); ++length) {
      const std::span<const uint8_t> cut(bytes.data(), length);
      EXPECT_THAT([&] { DecodeImage(cut, "cut.jpg"); }, DataError({"cut.jpg"}))
          << length << " of " << bytes.size();
      // Fails even if the region ends before the cut.
      EXPECT_THAT(
          [&] {
            OpenImage(cut, "cut.jpg")->Read({0, 0, 4, 2}, part);
          },
          DataError({"cut.jpg"}))
          << length << " of " << bytes.size();
    }
  }
}

TEST(Decode, TruncationIsCalledSo) {
  const Image picture = MakePicture(64, 64, 7);
  for (Bytes bytes : {EncodeJpeg(picture), EncodePng(picture)}) {
    bytes.resize(bytes.size() / 2);
    EXPECT_THAT([&] { DecodeImage(bytes, "dir/x.jpg"); },
                DataError({"dir/x.jpg", "truncated"}));
  }
}

TEST(Decode, DamagedBytesNeverCrash) {
  const Image picture = MakePicture(40, 36, 8);
  Image part;
  for (const Bytes& bytes :
       {EncodeJpeg(picture), EncodeJpeg(picture, {.progressive = true}),
        EncodePng(picture)}) {
    int rejected = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<uint8_t>(1 + at % 255);
      try {
        const auto reader = OpenImage(damaged, "bad", {.max_pixels = 1 << 20});
        reader->Read(WholeImage(reader->size()), part);
        reader->Read({0, 0, 1, 1}, part);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
        ++rejected;
      }
    }
    EXPECT_GT(rejected, 0);
  }
}

TEST(Decode, TooManyPixelsAreRejectedBeforeDecoding) {
  const Image picture = MakePicture(100, 50, 9);
  for (const Bytes& bytes : {EncodeJpeg(picture), EncodePng(picture)}) {
    EXPECT_NO_THROW(OpenImage(bytes, "x", {.max_pixels = 5000}));
    EXPECT_THAT([&] { OpenImage(bytes, "x", {.max_pixels = 4999}); },
                DataError({"image x", "100x50", "4999"}));
  }
}

TEST(Decode, TooManyScansAreRejected) {
  const Bytes bytes =
      EncodeJpeg(MakePicture(64, 64, 10), {.progressive = true});
  // libjpeg's default progressive scan script has 10 scans for colour images.
  EXPECT_NO_THROW(DecodeImage(bytes, "x", {.max_scans = 10}));
  EXPECT_THAT([&] { DecodeImage(bytes, "x", {.max_scans = 9}); },
              DataError({"image x", "more than 9 scans"}));
}

TEST(Decode, ARegionOutsideTheImageIsOurFault) {
  const Bytes bytes = EncodeJpeg(MakePicture(20, 20, 11));
  Image part;
  EXPECT_THAT(
      [&] {
        OpenImage(bytes, "x")->Read({10, 0, 11, 5}, part);
      },
      Throws<Error>(Property(&Error::code, ErrorCode::kInternal)));
}

}  // namespace
}  // namespace fusor::runtime
