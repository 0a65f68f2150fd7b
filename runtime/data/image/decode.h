#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/data/image/image.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {

// Reads the header of an encoded image. `bytes` must outlive the reader;
// `name` is what messages call the image, usually its path. Throws kData: not
// a JPEG or PNG, a broken header, or a limit exceeded.
std::unique_ptr<ImageReader> OpenImage(std::span<const uint8_t> bytes,
                                       std::string_view name,
                                       const DecodeLimits& limits = {});

// OpenImage and size(), without decoding.
ImageSize ReadImageSize(std::span<const uint8_t> bytes, std::string_view name,
                        const DecodeLimits& limits = {});

// OpenImage and Read of everything.
Image DecodeImage(std::span<const uint8_t> bytes, std::string_view name,
                  const DecodeLimits& limits = {});

}  // namespace fusor::runtime
