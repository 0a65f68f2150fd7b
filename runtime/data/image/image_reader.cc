#include "runtime/data/image/image_reader.h"

#include <cstring>
#include <limits>

#include "ir/support/error.h"

namespace fusor::runtime {

void ImageReader::Read(const Region& region, Image& image) {
  FUSOR_ASSERT(region.x >= 0 && region.y >= 0 && region.width > 0 &&
                   region.height > 0 &&
                   region.x + region.width <= size_.width &&
                   region.y + region.height <= size_.height,
               "region {}x{} at ({}, {}) of a {}x{} image", region.width,
               region.height, region.x, region.y, size_.width, size_.height);
  ReadRegion(region, image);
}

void WholeImageReader::ReadRegion(const Region& region, Image& image) {
  Image& whole = region == WholeImage(size_) ? image : whole_;
  whole.SetSize(size_.width, size_.height);
  ReadWhole(whole);
  if (&whole == &image) return;
  image.SetSize(region.width, region.height);
  for (int y = 0; y < region.height; ++y) {
    const uint8_t* from = whole.Row(region.y + y) + size_t{3} * region.x;
    std::memcpy(image.Row(y), from, image.row_bytes());
  }
}

ImageSize CheckedSize(int64_t width, int64_t height, std::string_view name,
                      const DecodeLimits& limits) {
  constexpr int64_t kMaxSide = std::numeric_limits<int>::max();
  FUSOR_CHECK(
      width > 0 && height > 0 && width <= kMaxSide && height <= kMaxSide, kData,
      "image {}: expected 1 or more pixels a side, got {}x{}", name, width,
      height);
  FUSOR_CHECK(width * height <= limits.max_pixels, kData,
              "image {}: {}x{} pixels, expected at most {} in all", name, width,
              height, limits.max_pixels);
  return {static_cast<int>(width), static_cast<int>(height)};
}

}  // namespace fusor::runtime
