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

// The two supported formats, then unsupported ones to name in messages.
constexpr Signature kJpeg = {"JPEG", 0, "\xff\xd8\xff"};
constexpr Signature kPng = {"PNG", 0, "\x89PNG\r\n\x1a\n"};
constexpr std::array<Signature, 6> kUnsupported = {{
    {"BMP", 0, "BM"},
    {"GIF", 0, "GIF8"},
    {"PNM", 0, "P6"},
    {"TIFF", 0, "II*"},
    {"TIFF", 0, "MM"},
    {"WebP", 8, "WEBP"},
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
  if (Matches(bytes, kJpeg)) return OpenJpeg(bytes, name, limits);
  if (Matches(bytes, kPng)) return OpenPng(bytes, name, limits);
  FUSOR_CHECK(!bytes.empty(), kData, "image {}: the file is empty", name);
  for (const Signature& signature : kUnsupported) {
    FUSOR_CHECK(!Matches(bytes, signature), kData,
                "image {}: expected JPEG or PNG, got {}", name,
                signature.format);
  }
  ThrowError(ErrorCode::kData,
             fmt::format("image {}: expected JPEG or PNG, got {} bytes of "
                         "another format",
                         name, bytes.size()));
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
