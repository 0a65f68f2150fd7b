#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Limits on the memory and time that a small file can cost.
struct DecodeLimits {
  // Width x height of the file; default: Pillow's decompression bomb limit.
  int64_t max_pixels = 178'956'970;
  // Scans of a progressive JPEG; each one passes over the whole image.
  int max_scans = 500;
};

// An encoded image whose header has been read. The format is detected by the
// first bytes, never by the file name. EXIF orientation is ignored, as in
// torchvision. The result is always RGB: grey is replicated, CMYK is converted
// by Pillow's formula (Adobe polarity), alpha is dropped, 16-bit samples of a
// PNG keep the high byte. JPEG decoding uses libjpeg-turbo's defaults (islow
// DCT, fancy upsampling). An animation has the pixels of its first frame.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  ImageSize size() const { return size_; }

  // Decodes `region`, which must be within the image, into `image`. The pixels
  // equal those of a full decode. For a single-scan JPEG, decodes only the
  // needed part. May be called repeatedly.
  //
  // Throws kData if the data is corrupt or truncated. A truncated file is
  // rejected even if `region` precedes the cut; other damage is detected only
  // where it is decoded.
  void Read(const Region& region, Image& image);

 protected:
  virtual void ReadRegion(const Region& region, Image& image) = 0;

  ImageSize size_;
};

// A reader that always decodes the whole image.
class WholeImageReader : public ImageReader {
 protected:
  // Decodes the image; `image` has its size. May be called repeatedly.
  virtual void ReadWhole(Image& image) = 0;

 private:
  void ReadRegion(const Region& region, Image& image) final;

  Image whole_;
};

// Returns the size. Throws kData if a side is not positive or the pixels exceed
// the limit.
ImageSize CheckedSize(int64_t width, int64_t height, std::string_view name,
                      const DecodeLimits& limits);

// OpenImage for bytes that begin with a JPEG signature.
std::unique_ptr<ImageReader> OpenJpeg(std::span<const uint8_t> bytes,
                                      std::string_view name,
                                      const DecodeLimits& limits);

// OpenImage for bytes that begin with a PNG signature.
std::unique_ptr<ImageReader> OpenPng(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits);

// OpenImage for bytes that begin with a WebP signature.
std::unique_ptr<ImageReader> OpenWebp(std::span<const uint8_t> bytes,
                                      std::string_view name,
                                      const DecodeLimits& limits);

// OpenImage for bytes that begin with a GIF signature.
std::unique_ptr<ImageReader> OpenGif(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits);

// OpenImage for bytes that begin with a BMP signature.
std::unique_ptr<ImageReader> OpenBmp(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits);

// OpenImage for bytes that begin with the signature of a binary PGM or PPM.
std::unique_ptr<ImageReader> OpenNetpbm(std::span<const uint8_t> bytes,
                                        std::string_view name,
                                        const DecodeLimits& limits);

}  // namespace fusor::runtime
