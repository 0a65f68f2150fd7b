#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/image/image.h"

// Makes images and encodes them, for tests.
namespace fusor::testing {

using Bytes = std::vector<uint8_t>;

// Draws a picture with smooth parts, edges and noise. Depends only on its
// arguments.
runtime::Image MakePicture(int width, int height, uint64_t seed);

// Returns the pixels of a region of the image.
runtime::Image Cut(const runtime::Image& image, const runtime::Region& region);

struct JpegOptions {
  int quality = 90;
  int luma_h = 2;  // sampling factors of luma against chroma: 2, 2 is 4:2:0
  int luma_v = 2;
  bool grey = false;  // one component, converted from the picture
  bool progressive = false;
  int restart_rows = 0;
};

Bytes EncodeJpeg(const runtime::Image& image, const JpegOptions& options = {});

// Stores `cmyk`, [height, width, 4], without conversion and with an Adobe
// marker.
Bytes EncodeCmykJpeg(std::span<const uint8_t> cmyk, int width, int height);

struct PngOptions {
  int colour_type = 2;  // PNG colour type: 2 is RGB
  int bits = 8;
  bool interlaced = false;
  Bytes palette = {};  // RGB triples
};

// `rows` are the samples as stored in the file: [height, bytes per row].
Bytes EncodePng(std::span<const uint8_t> rows, int width, int height,
                const PngOptions& options);
Bytes EncodePng(const runtime::Image& image);

// Writes a file. Creates missing folders.
void WriteTestFile(const std::string& path, std::span<const uint8_t> bytes);

}  // namespace fusor::testing
