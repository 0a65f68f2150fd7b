#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ir/support/file.h"

namespace fusor::runtime {

// Returns whether a file that starts with these bytes is packed with gzip.
bool IsGzip(std::span<const uint8_t> start);

// Unpacks a gzip file into a file without a name in the folder for temporary
// files (TMPDIR, otherwise /tmp). Throws kData if it is damaged, if its
// contents are more than a hundred times its size, as no images are, or if the
// folder is full.
std::unique_ptr<InputFile> Gunzip(const std::string& path);

}  // namespace fusor::runtime
