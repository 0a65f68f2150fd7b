#include "runtime/data/image/image_reader.h"

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

}  // namespace fusor::runtime
