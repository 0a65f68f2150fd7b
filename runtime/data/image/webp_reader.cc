#include <webp/decode.h>

#include <algorithm>
#include <string>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

using Bytes = std::span<const uint8_t>;

int64_t Number(Bytes bytes, size_t at, int count) {
  int64_t number = 0;
  for (int i = 0; i < count; ++i) {
    number |= int64_t{bytes[at + static_cast<size_t>(i)]} << (8 * i);
  }
  return number;
}

// The image data of a file, which libwebp decodes, and their place.
struct Frame {
  Bytes data;
  int x = 0;
  int y = 0;
};

// A chunk "ANMF" of an animation has the offset, size and duration of a frame,
// then its image data.
constexpr size_t kFrameHeader = 16;

class WebpReader : public WholeImageReader {
 public:
  WebpReader(Bytes bytes, std::string_view name, const DecodeLimits& limits)
      : bytes_(bytes), name_(name) {
    // "RIFF", the number of bytes that follow, "WEBP".
    const int64_t stored = Number(bytes_, 4, 4) + 8;
    Check(stored <= static_cast<int64_t>(bytes_.size()), "truncated",
          "the file ends before its data");
    bytes_ = bytes_.first(
        static_cast<size_t>(std::max(stored, int64_t{kRiffHeader})));
    WebPBitstreamFeatures features;
    CheckStatus(WebPGetFeatures(bytes_.data(), bytes_.size(), &features));
    size_ = CheckedSize(features.width, features.height, name_, limits);
    animated_ = features.has_animation != 0;
  }

  void ReadWhole(Image& image) override {
    if (!animated_) {
      Decode({bytes_}, image);
      return;
    }
    // The rest of the canvas is transparent black.
    std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{0});
    Decode(FirstFrame(), image);
  }

 private:
  static constexpr size_t kRiffHeader = 12;

  void Check(bool ok, std::string_view how, std::string_view what) const {
    FUSOR_CHECK(ok, kData, "image {}: {} WebP: {}", name_, how, what);
  }

  void CheckStatus(VP8StatusCode status) const {
    FUSOR_CHECK(status != VP8_STATUS_OUT_OF_MEMORY, kOutOfMemory,
                "image {}: no memory to decode it", name_);
    const bool truncated =
        status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED;
    Check(status == VP8_STATUS_OK, truncated ? "truncated" : "broken",
          truncated ? "the image data end too early"
                    : "the image data are corrupt");
  }

  Frame FirstFrame() const {
    size_t at = kRiffHeader;
    while (at + 8 <= bytes_.size()) {
      const Bytes tag = bytes_.subspan(at, 4);
      const int64_t size = Number(bytes_, at + 4, 4);
      at += 8;
      const int64_t left = static_cast<int64_t>(bytes_.size() - at);
      Check(size <= left, "truncated", "a chunk ends after the file");
      if (std::equal(tag.begin(), tag.end(), "ANMF")) {
        Check(size >= static_cast<int64_t>(kFrameHeader), "broken",
              "a frame has no header");
        return {
            .data = bytes_.subspan(at + kFrameHeader,
                                   static_cast<size_t>(size) - kFrameHeader),
            .x = static_cast<int>(2 * Number(bytes_, at, 3)),
            .y = static_cast<int>(2 * Number(bytes_, at + 3, 3))};
      }
      at += static_cast<size_t>(std::min(size + size % 2, left));
    }
    Check(false, "broken", "an animation without a frame");
    return {};
  }

  // Decodes into the frame's place. Drops alpha.
  void Decode(const Frame& frame, Image& image) const {
    WebPBitstreamFeatures features;
    CheckStatus(
        WebPGetFeatures(frame.data.data(), frame.data.size(), &features));
    Check(features.has_animation == 0 && frame.x <= size_.width &&
              frame.y <= size_.height &&
              features.width <= size_.width - frame.x &&
              features.height <= size_.height - frame.y,
          "broken", "a frame exceeds the image");
    WebPDecoderConfig config;
    WebPInitDecoderConfig(&config);
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba =
        image.Row(frame.y) + size_t{3} * static_cast<size_t>(frame.x);
    config.output.u.RGBA.stride = static_cast<int>(image.row_bytes());
    config.output.u.RGBA.size =
        image.row_bytes() * static_cast<size_t>(features.height - 1) +
        size_t{3} * static_cast<size_t>(features.width);
    CheckStatus(WebPDecode(frame.data.data(), frame.data.size(), &config));
  }

  Bytes bytes_;
  std::string name_;
  bool animated_ = false;
};

}  // namespace

std::unique_ptr<ImageReader> OpenWebp(std::span<const uint8_t> bytes,
                                      std::string_view name,
                                      const DecodeLimits& limits) {
  return std::make_unique<WebpReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
