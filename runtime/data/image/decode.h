#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/data/image/image.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {

// Reads the header of an encoded image. `bytes` must outlive the reader. `name`
// names the image in messages, usually its path. Reads JPEG, PNG, WebP, GIF,
// BMP, and binary PPM and PGM. Throws kData for another format, if the header
// is corrupt, or if a limit is exceeded.
std::unique_ptr<ImageReader> OpenImage(std::span<const uint8_t> bytes,
                                       std::string_view name,
                                       const DecodeLimits& limits = {});

// Returns the format's name, such as "JPEG"; "" for bytes of no format.
std::string_view ImageFormat(std::span<const uint8_t> bytes);

// Returns the image's size from its header, without decoding.
ImageSize ReadImageSize(std::span<const uint8_t> bytes, std::string_view name,
                        const DecodeLimits& limits = {});

// Decodes the whole image.
Image DecodeImage(std::span<const uint8_t> bytes, std::string_view name,
                  const DecodeLimits& limits = {});

}  // namespace fusor::runtime
