#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Encodes a baseline JPEG file with 4:2:0 chroma. `quality` is libjpeg's, 1 to
// 100. Throws kData if the image is empty or too large for the format.
std::vector<uint8_t> EncodeJpeg(const Image& image, int quality);

// Encodes a binary PPM (P6).
std::vector<uint8_t> EncodePpm(const Image& image);

// Writes a binary PPM atomically (WriteFileAtomically). Most viewers and
// Pillow read this format. Throws kData with the system's error message.
void WritePpm(const std::string& path, const Image& image);

}  // namespace fusor::runtime
