#pragma once

// Hugging Face's safetensors format: header length (8 bytes), JSON header
// {name: {dtype, shape, data_offsets}}, tensor data. See
// https://github.com/huggingface/safetensors#format.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/interpreter/tensor_source.h"
#include "ir/io/named_tensor.h"

namespace fusor::runtime {

using ir::NamedTensor;

using Metadata = std::map<std::string, std::string>;

// Metadata entry kChecksum: hexadecimal CRC-32C of one line KEY=VALUE for each
// other entry whose key starts with kOwnPrefix, in order, followed by the
// tensors' bytes. All files written here have it; files of other programs may
// not. Safetensors::metadata omits it.
inline constexpr char kOwnPrefix[] = "fusor.";
inline constexpr char kChecksum[] = "fusor.crc32c";

// Tensors of an open file, or of another source.
struct Safetensors {
  std::vector<ir::TensorSource> tensors;  // in file order
  Metadata metadata;                      // "__metadata__"

  // Returns null if there is no tensor of that name.
  const ir::TensorSource* Find(std::string_view name) const;
};

// Opens and validates a file; the tensors are read from it when they are used.
// Throws kCheckpoint, with a line that names file, tensor, expected and actual
// values, for: malformed headers, unknown dtypes, duplicate names, sizes
// inconsistent with dtype and shape, tensors that overlap, leave gaps or exceed
// the file, and wrong checksums. Also throws for a PyTorch pickle, with the
// command that converts it.
Safetensors ReadSafetensors(const std::string& path);

// Returns whether a file that starts with these bytes is a safetensors file.
bool IsSafetensors(std::span<const uint8_t> start);

// Size and checksum of a file.
struct FileSum {
  int64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileSum&) const = default;
};
// The same; throws kCheckpoint first if the file has another size or checksum.
Safetensors ReadSafetensors(const std::string& path, const FileSum& expected);

// Writes row-major tensors with unique names, largest element sizes first so
// that all are aligned, and flushes the file to disk. Reads each tensor twice,
// in the same order. On failure throws kCheckpoint and leaves an existing file
// of that name unchanged.
FileSum WriteSafetensors(const std::string& path,
                         std::span<const ir::TensorSource> tensors,
                         const Metadata& metadata = {});

// Returns sources of the tensors, which must outlive them.
std::vector<ir::TensorSource> SourcesOf(std::span<const NamedTensor> tensors);

}  // namespace fusor::runtime
