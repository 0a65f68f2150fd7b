#include <charconv>
#include <cstring>
#include <string>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

bool IsSpace(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Binary PGM (P5) and PPM (P6).
class NetpbmReader : public ImageReader {
 public:
  NetpbmReader(std::span<const uint8_t> bytes, std::string_view name,
               const DecodeLimits& limits)
      : bytes_(bytes), name_(name), channels_(bytes[1] == '5' ? 1 : 3) {
    const int64_t width = ReadNumber();
    const int64_t height = ReadNumber();
    size_ = CheckedSize(width, height, name_, limits);
    max_ = ReadNumber();
    FUSOR_CHECK(max_ > 0 && max_ < 65536, kData,
                "image {}: broken {}: expected a greatest level from 1 to "
                "65535, got {}",
                name_, format(), max_);
    const int64_t expected = width * height * channels_ * (max_ < 256 ? 1 : 2);
    const auto left = static_cast<int64_t>(bytes_.size() - at_);
    FUSOR_CHECK(left >= expected, kData,
                "image {}: truncated {}: expected {} bytes of pixels, got {}",
                name_, format(), expected, left);
  }

 protected:
  // Reads only the region: fusor's shards hold PPM files.
  void ReadRegion(const Region& region, Image& image) override {
    image.SetSize(region.width, region.height);
    const size_t pixel_bytes =
        static_cast<size_t>(channels_) * (max_ < 256 ? 1 : 2);
    for (int y = 0; y < region.height; ++y) {
      const size_t pixel =
          static_cast<size_t>(region.y + y) * static_cast<size_t>(size_.width) +
          static_cast<size_t>(region.x);
      ReadRow(bytes_.data() + at_ + pixel * pixel_bytes,
              {image.Row(y), image.row_bytes()});
    }
  }

 private:
  void ReadRow(const uint8_t* from, std::span<uint8_t> row) const {
    if (max_ == 255 && channels_ == 3) {
      std::memcpy(row.data(), from, row.size());
      return;
    }
    for (size_t i = 0; i < row.size();) {
      uint8_t level = 0;
      for (int c = 0; c < 3; ++c, ++i) {
        if (c < channels_) level = NextLevel(from);
        row[i] = level;
      }
    }
  }

  const char* format() const { return channels_ == 1 ? "PGM" : "PPM"; }

  // Reads a sample and scales it to 255.
  uint8_t NextLevel(const uint8_t*& from) const {
    int64_t value = *from++;
    if (max_ == 255) return static_cast<uint8_t>(value);
    if (max_ > 255) value = value << 8 | *from++;
    // Rounded half to even, as in Pillow.
    const int64_t twice = 2 * 255 * value;
    int64_t level = (twice + max_) / (2 * max_);
    if ((twice + max_) % (2 * max_) == 0 && level % 2 == 1) --level;
    return static_cast<uint8_t>(level > 255 ? 255 : level);
  }

  // Reads a number of the header and the character after it.
  int64_t ReadNumber() {
    while (at_ < bytes_.size() &&
           (IsSpace(bytes_[at_]) || bytes_[at_] == '#')) {
      const bool comment = bytes_[at_++] == '#';
      while (comment && at_ < bytes_.size() && bytes_[at_] != '\n' &&
             bytes_[at_] != '\r') {
        ++at_;
      }
    }
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const auto* end =
        reinterpret_cast<const char*>(bytes_.data()) + bytes_.size();
    int64_t number = 0;
    const auto result = std::from_chars(begin, end, number);
    at_ += static_cast<size_t>(result.ptr - begin);
    FUSOR_CHECK(at_ < bytes_.size(), kData,
                "image {}: truncated {}: the header ends too early", name_,
                format());
    FUSOR_CHECK(result.ec == std::errc() && IsSpace(bytes_[at_]), kData,
                "image {}: broken {}: expected a number in the header, got "
                "another character at byte {}",
                name_, format(), at_);
    ++at_;
    return number;
  }

  std::span<const uint8_t> bytes_;
  std::string name_;
  int channels_;
  size_t at_ = 2;  // first unread byte of the header, then the pixels
  int64_t max_ = 0;
};

}  // namespace

std::unique_ptr<ImageReader> OpenNetpbm(std::span<const uint8_t> bytes,
                                        std::string_view name,
                                        const DecodeLimits& limits) {
  return std::make_unique<NetpbmReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
