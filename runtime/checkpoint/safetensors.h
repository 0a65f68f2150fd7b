#pragma once

// Hugging Face's safetensors format: header length (8 bytes), JSON header
// {name: {dtype, shape, data_offsets}}, tensor data. See
// https://github.com/huggingface/safetensors#format.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

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

struct Safetensors {
  std::vector<NamedTensor> tensors;  // in file order
  Metadata metadata;                 // "__metadata__"

  // Returns null if there is no tensor of that name.
  const NamedTensor* Find(std::string_view name) const;
};

// Reads and validates a whole file. Throws kCheckpoint, with a line that names
// file, tensor, expected and actual values, for: malformed headers, unknown
// dtypes, duplicate names, sizes inconsistent with dtype and shape, tensors
// that overlap, leave gaps or exceed the file, and wrong checksums. Also throws
// for a PyTorch pickle, with the command that converts it.
Safetensors ReadSafetensors(const std::string& path);
// Parses a file's bytes likewise; `path` names the file in messages.
Safetensors ParseSafetensors(const std::string& path,
                             std::span<const uint8_t> file);

// Expected size and checksum of a file when it is read back.
struct FileSum {
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};

// Writes tensors with unique names, largest element sizes first so that all are
// aligned, and flushes the file to disk. On failure throws kCheckpoint and
// leaves an existing file of that name unchanged.
FileSum WriteSafetensors(const std::string& path,
                         std::span<const NamedTensor> tensors,
                         const Metadata& metadata = {});

}  // namespace fusor::runtime
