#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/image/image.h"

// Images and their files, for tests.
namespace fusor::testing {

using Bytes = std::vector<uint8_t>;

// A picture with smooth parts, edges and noise; a pure function of its
// arguments.
runtime::Image MakePicture(int width, int height, uint64_t seed);

// The pixels of a region that lies within the image.
runtime::Image Cut(const runtime::Image& image, const runtime::Region& region);

struct JpegOptions {
  int quality = 90;
  int luma_h = 2;  // sampling factors of luma against chroma: 2, 2 is 4:2:0
  int luma_v = 2;
  bool grey = false;  // one component, made from the picture
  bool progressive = false;
  int restart_rows = 0;
};

Bytes EncodeJpeg(const runtime::Image& image, const JpegOptions& options = {});

// `cmyk`: [height, width, 4], stored as it is, with an Adobe marker.
Bytes EncodeCmykJpeg(std::span<const uint8_t> cmyk, int width, int height);

struct PngOptions {
  int colour_type = 2;  // as in the file: PNG_COLOR_TYPE_RGB
  int bits = 8;
  bool interlaced = false;
  Bytes palette = {};  // RGB triples
};

// `rows`: the samples as the file holds them, [height, bytes of a row].
Bytes EncodePng(std::span<const uint8_t> rows, int width, int height,
                const PngOptions& options);
Bytes EncodePng(const runtime::Image& image);

// Writes a file, making its folders.
void WriteTestFile(const std::string& path, std::span<const uint8_t> bytes);

}  // namespace fusor::testing
