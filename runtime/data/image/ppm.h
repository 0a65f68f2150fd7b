#pragma once

#include <string>

#include "runtime/data/image/image.h"

namespace fusor::runtime {

// Writes a binary PPM (P6) atomically (WriteFileAtomically). Most viewers and
// Pillow read this format. Throws kData with the system's error message.
void WritePpm(const std::string& path, const Image& image);

}  // namespace fusor::runtime
