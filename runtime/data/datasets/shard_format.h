#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fusor::runtime {

// Formats of files that hold many samples.
enum class ShardFormat {
  kNone,  // another file
  kTfRecord,
  kRecordIo,
  kPacked,       // fusor's own: PackedImages
  kZip,          // ZipImages
  kTar,          // WebDataset; also packed with gzip
  kSafetensors,  // TensorSet
};

// Returns the format's name in messages.
std::string_view FormatName(ShardFormat format);

// Detects the format by the first bytes of a file.
ShardFormat DetectFormat(std::span<const uint8_t> start);

// Throws kData if the file cannot be read.
ShardFormat DetectFormat(const std::string& path);

}  // namespace fusor::runtime
