#include "runtime/data/image/decode.h"

#include <array>
#include <string>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

struct Signature {
  std::string_view format;
  size_t offset;
  std::string_view bytes;
};

constexpr std::string_view kExpected = "JPEG, PNG, WebP, GIF, BMP, PPM or PGM";

struct Format {
  Signature signature;
  std::unique_ptr<ImageReader> (*open)(std::span<const uint8_t> bytes,
                                       std::string_view name,
                                       const DecodeLimits& limits);
};

constexpr std::array<Format, 7> kFormats = {{
    {{"JPEG", 0, "\xff\xd8\xff"}, OpenJpeg},
    {{"PNG", 0, "\x89PNG\r\n\x1a\n"}, OpenPng},
    {{"WebP", 8, "WEBP"}, OpenWebp},
    {{"GIF", 0, "GIF8"}, OpenGif},
    {{"BMP", 0, "BM"}, OpenBmp},
    {{"PGM", 0, "P5"}, OpenNetpbm},
    {{"PPM", 0, "P6"}, OpenNetpbm},
}};

// Formats that are not supported, to name in messages.
constexpr std::array<Signature, 7> kUnsupported = {{
    {"text PBM", 0, "P1"},
    {"text PGM", 0, "P2"},
    {"text PPM", 0, "P3"},
    {"PBM", 0, "P4"},
    {"TIFF", 0, "II*"},
    {"TIFF", 0, "MM"},
    {"AVIF or HEIF", 4, "ftyp"},
}};

bool Matches(std::span<const uint8_t> bytes, const Signature& signature) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  return text.size() >= signature.offset &&
         text.substr(signature.offset).starts_with(signature.bytes);
}

}  // namespace

std::unique_ptr<ImageReader> OpenImage(std::span<const uint8_t> bytes,
                                       std::string_view name,
                                       const DecodeLimits& limits) {
  for (const Format& format : kFormats) {
    if (Matches(bytes, format.signature)) {
      return format.open(bytes, name, limits);
    }
  }
  FUSOR_CHECK(!bytes.empty(), kData, "image {}: the file is empty", name);
  for (const Signature& signature : kUnsupported) {
    FUSOR_CHECK(!Matches(bytes, signature), kData,
                "image {}: expected {}, got {}", name, kExpected,
                signature.format);
  }
  ThrowError(ErrorCode::kData,
             fmt::format("image {}: expected {}, got {} bytes of another "
                         "format",
                         name, kExpected, bytes.size()));
}

std::string_view ImageFormat(std::span<const uint8_t> bytes) {
  for (const Format& format : kFormats) {
    if (Matches(bytes, format.signature)) return format.signature.format;
  }
  return "";
}

ImageSize ReadImageSize(std::span<const uint8_t> bytes, std::string_view name,
                        const DecodeLimits& limits) {
  return OpenImage(bytes, name, limits)->size();
}

Image DecodeImage(std::span<const uint8_t> bytes, std::string_view name,
                  const DecodeLimits& limits) {
  const std::unique_ptr<ImageReader> reader = OpenImage(bytes, name, limits);
  Image image;
  reader->Read(WholeImage(reader->size()), image);
  return image;
}

}  // namespace fusor::runtime
