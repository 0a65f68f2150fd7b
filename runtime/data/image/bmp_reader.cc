#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

using Colour = std::array<uint8_t, 3>;

constexpr size_t kFileHeader = 14;
// Values of the header's field "compression".
constexpr int64_t kPlain = 0;
constexpr int64_t kRle8 = 1;
constexpr int64_t kBitFields = 3;

// Bits of a colour in a pixel of 16, 24 or 32 bits.
struct Channel {
  int shift = 0;
  uint32_t max = 0;
};

// Windows bitmaps, and those of OS/2 with the short header.
class BmpReader : public WholeImageReader {
 public:
  BmpReader(std::span<const uint8_t> bytes, std::string_view name,
            const DecodeLimits& limits)
      : bytes_(bytes), name_(name) {
    const auto header = static_cast<size_t>(U32(kFileHeader));
    Check(header == 12 || (header >= 40 && header <= 1024), "broken",
          fmt::format("a header of {} bytes", header));
    Require(kFileHeader + header, "the header");
    int64_t width = 0;
    int64_t height = 0;
    size_t colours = 0;
    const bool short_header = header < 40;
    if (short_header) {
      width = U16(18);
      height = U16(20);
      bits_ = U16(24);
    } else {
      width = static_cast<int32_t>(U32(18));
      height = static_cast<int32_t>(U32(22));
      bits_ = U16(28);
      compression_ = U32(30);
      colours = U32(46);
    }
    top_down_ = height < 0;
    size_ = CheckedSize(width, top_down_ ? -height : height, name_, limits);
    CheckKind();
    size_t end = kFileHeader + header;
    if (bits_ > 8) {
      end = ReadChannels(header);
    } else {
      const size_t entry = short_header ? 3 : 4;
      if (colours == 0) colours = size_t{1} << bits_;
      ReadPalette(end, colours, entry);
      end += entry * colours;
    }
    // Some writers forget that the palette precedes the pixels.
    pixels_ = std::max<size_t>(U32(10), end);
    if (compression_ != kRle8) {
      Require(pixels_ + Stride() * static_cast<size_t>(size_.height),
              "the pixels");
    }
  }

  void ReadWhole(Image& image) override {
    if (compression_ == kRle8) ReadRle8();
    for (int y = 0; y < size_.height; ++y) {
      const size_t row =
          static_cast<size_t>(top_down_ ? y : size_.height - 1 - y);
      if (bits_ > 8) {
        ReadColours(bytes_.data() + pixels_ + Stride() * row, image.Row(y));
      } else if (compression_ == kRle8) {
        ReadIndices(indices_.data() + row * static_cast<size_t>(size_.width),
                    image.Row(y));
      } else {
        ReadIndices(bytes_.data() + pixels_ + Stride() * row, image.Row(y));
      }
    }
  }

 private:
  void Check(bool ok, std::string_view how, std::string_view what) const {
    FUSOR_CHECK(ok, kData, "image {}: {} BMP: {}", name_, how, what);
  }

  void Require(size_t count, std::string_view what) const {
    FUSOR_CHECK(count <= bytes_.size(), kData,
                "image {}: truncated BMP: expected {} bytes up to the end of "
                "{}, got {}",
                name_, count, what, bytes_.size());
  }

  uint32_t U16(size_t at) const {
    Require(at + 2, "the header");
    return bytes_[at] | uint32_t{bytes_[at + 1]} << 8;
  }
  uint32_t U32(size_t at) const { return U16(at) | U16(at + 2) << 16; }

  // Bytes per row of pixels that are not compressed.
  size_t Stride() const {
    return (static_cast<size_t>(size_.width) * bits_ + 31) / 32 * 4;
  }

  void CheckKind() const {
    const bool indexed = bits_ == 1 || bits_ == 4 || bits_ == 8;
    const bool direct = bits_ == 16 || bits_ == 24 || bits_ == 32;
    const bool known =
        (compression_ == kPlain && (indexed || direct)) ||
        (compression_ == kRle8 && bits_ == 8 && !top_down_) ||
        (compression_ == kBitFields && (bits_ == 16 || bits_ == 32));
    FUSOR_CHECK(known, kData,
                "image {}: BMP of {} bits per pixel with compression {}: "
                "expected 1, 4, 8, 16, 24 or 32 bits without compression, or "
                "RLE8",
                name_, bits_, compression_);
  }

  // Indices without a colour are levels of grey, as in Pillow.
  void ReadPalette(size_t at, size_t colours, size_t entry) {
    for (size_t i = 0; i < palette_.size(); ++i) {
      palette_[i].fill(static_cast<uint8_t>(i));
    }
    Check(colours <= 65536, "broken", fmt::format("{} colours", colours));
    Require(at + entry * colours, "the palette");
    for (size_t i = 0; i < std::min(colours, palette_.size()); ++i) {
      const uint8_t* bgr = bytes_.data() + at + entry * i;
      palette_[i] = {bgr[2], bgr[1], bgr[0]};
    }
  }

  // Returns the end of the headers.
  size_t ReadChannels(size_t header) {
    size_t end = kFileHeader + header;
    std::array<uint32_t, 3> masks = {0xff0000, 0xff00, 0xff};
    if (bits_ == 16) masks = {0x7c00, 0x3e0, 0x1f};
    if (compression_ == kBitFields) {
      for (size_t i = 0; i < 3; ++i) {
        masks[i] = U32(kFileHeader + 40 + 4 * i);
      }
      if (header == 40) end += 12;
    }
    for (size_t i = 0; i < 3; ++i) {
      const uint32_t mask = masks[i];
      Channel& channel = channels_[i];
      while (channel.shift < 31 && (mask >> channel.shift & 1) == 0) {
        ++channel.shift;
      }
      channel.max = mask >> channel.shift;
      Check(mask != 0 && (channel.max & (channel.max + 1)) == 0 &&
                channel.max <= 255,
            "broken", fmt::format("a colour mask {:#x}", mask));
    }
    return end;
  }

  void ReadColours(const uint8_t* from, uint8_t* to) const {
    const size_t count = bits_ / 8;
    for (int x = 0; x < size_.width; ++x, from += count) {
      uint32_t pixel = 0;
      for (size_t i = 0; i < count; ++i) pixel |= uint32_t{from[i]} << (8 * i);
      for (const Channel& channel : channels_) {
        const uint32_t value = pixel >> channel.shift & channel.max;
        *to++ = static_cast<uint8_t>(value * 255 / channel.max);
      }
    }
  }

  void ReadIndices(const uint8_t* from, uint8_t* to) const {
    const uint32_t mask = (1U << bits_) - 1;
    for (int x = 0; x < size_.width; ++x) {
      const size_t bit = static_cast<size_t>(x) * bits_;
      const uint32_t index =
          uint32_t{from[bit / 8]} >> (8 - bits_ - bit % 8) & mask;
      to = std::copy(palette_[index].begin(), palette_[index].end(), to);
    }
  }

  // Decodes runs into `indices_`, rows from bottom to top.
  void ReadRle8() {
    const auto width = static_cast<size_t>(size_.width);
    const auto height = static_cast<size_t>(size_.height);
    indices_.assign(width * height, 0);
    size_t at = pixels_;
    size_t x = 0;
    size_t y = 0;
    const auto next = [&] {
      Require(at + 1, "the runs");
      return size_t{bytes_[at++]};
    };
    while (true) {
      const size_t count = next();
      const size_t value = next();
      if (count == 0 && value == 0) {  // end of the row
        x = 0;
        ++y;
      } else if (count == 0 && value == 1) {  // end of the image
        return;
      } else if (count == 0 && value == 2) {  // skips pixels
        x += next();
        y += next();
      } else {
        const size_t run = count > 0 ? count : value;
        Check(y < height && x <= width && run <= width - x, "broken",
              "a run exceeds its row");
        uint8_t* to = indices_.data() + y * width + x;
        if (count > 0) {
          std::memset(to, static_cast<int>(value), run);
        } else {
          Require(at + run + run % 2, "the runs");
          std::memcpy(to, bytes_.data() + at, run);
          at += run + run % 2;
        }
        x += run;
      }
    }
  }

  std::span<const uint8_t> bytes_;
  std::string name_;
  uint32_t bits_ = 0;  // per pixel
  int64_t compression_ = kPlain;
  bool top_down_ = false;
  size_t pixels_ = 0;  // offset of the pixels
  std::array<Colour, 256> palette_ = {};
  std::array<Channel, 3> channels_ = {};
  std::vector<uint8_t> indices_;
};

}  // namespace

std::unique_ptr<ImageReader> OpenBmp(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits) {
  return std::make_unique<BmpReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
