#pragma once

#include <cstdint>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Bounds that stop a small file from costing much memory or time.
struct DecodeLimits {
  // Width x height of the file; the default is where Pillow sees a bomb.
  int64_t max_pixels = 178'956'970;
  // Scans of a progressive JPEG: each costs a pass over the whole image.
  int max_scans = 500;
};

// One encoded image, its header read. JPEG and PNG are told apart by their
// first bytes, never by the file name. EXIF orientation is ignored, as by
// torchvision. The result is always RGB: grey is replicated, CMYK goes through
// Pillow's formula (Adobe polarity), alpha is dropped, 16 bits keep the high
// byte. JPEG pixels are those of libjpeg-turbo's defaults (islow DCT, fancy
// upsampling).
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  ImageSize size() const { return size_; }

  // Decodes `region`, which lies within the image, into `image`: exactly the
  // pixels a full decode has there. For a JPEG of one scan only the part that
  // is needed is computed. May be called again.
  //
  // Throws kData when the data is corrupt or ends early. A file that is cut
  // anywhere is refused even when `region` lies before the cut; other damage
  // is only noticed where decoding meets it.
  void Read(const Region& region, Image& image);

 protected:
  virtual void ReadRegion(const Region& region, Image& image) = 0;

  ImageSize size_;
};

}  // namespace fusor::runtime
