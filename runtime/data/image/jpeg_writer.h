#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Encodes a baseline JPEG file with 4:2:0 chroma. `quality` is libjpeg's, 1 to
// 100. Throws kData if the image is empty or too large for the format.
std::vector<uint8_t> EncodeJpeg(const Image& image, int quality);

}  // namespace fusor::runtime
