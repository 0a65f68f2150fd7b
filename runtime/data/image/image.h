#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fusor::runtime {

// Width and height of an image in pixels.
struct ImageSize {
  int width = 0;
  int height = 0;
  bool operator==(const ImageSize&) const = default;
};

// A rectangle of whole pixels; x grows to the right, y downwards.
struct Region {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
  bool operator==(const Region&) const = default;
};

// The region that covers a whole image.
constexpr Region WholeImage(ImageSize size) {
  return {0, 0, size.width, size.height};
}

// An 8-bit RGB image: pixels are [height, width, 3], rows top to bottom,
// contiguous. Reusable: SetSize keeps the storage.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> pixels;

  // Resizes the image; the pixels are unspecified afterwards.
  void SetSize(int new_width, int new_height) {
    width = new_width;
    height = new_height;
    pixels.resize(row_bytes() * static_cast<size_t>(height));
  }
  size_t row_bytes() const { return static_cast<size_t>(width) * 3; }
  uint8_t* Row(int y) { return pixels.data() + row_bytes() * y; }
  const uint8_t* Row(int y) const { return pixels.data() + row_bytes() * y; }
};

}  // namespace fusor::runtime
