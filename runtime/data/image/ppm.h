#pragma once

#include <string>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Writes a binary PPM (P6), which most viewers and Pillow read, atomically by
// renaming. Throws kData with the system's reason.
void WritePpm(const std::string& path, const Image& image);

}  // namespace fusor::runtime
