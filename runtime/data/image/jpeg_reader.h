#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {

// OpenImage for bytes that begin with a JPEG signature.
std::unique_ptr<ImageReader> OpenJpeg(std::span<const uint8_t> bytes,
                                      std::string_view name,
                                      const DecodeLimits& limits);

}  // namespace fusor::runtime
