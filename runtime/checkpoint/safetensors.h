#pragma once

// Hugging Face's safetensors format: eight bytes with the header's length, a
// JSON header {name: {dtype, shape, data_offsets}}, the tensors' bytes. See
// https://github.com/huggingface/safetensors#format.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ir/tensor_type.h"

namespace fusor::runtime {

struct NamedTensor {
  std::string name;
  ir::TensorType type;         // row-major
  std::vector<uint8_t> bytes;  // type.num_bytes(), little-endian
};

using Metadata = std::map<std::string, std::string>;

// Entry of the metadata: CRC-32C, in hexadecimal, of a line KEY=VALUE for each
// other entry whose key begins with kOwnPrefix, in order, and then of the
// tensors' bytes. Every file that is written has it. Files of other programs
// need not; Safetensors::metadata leaves it out.
inline constexpr char kOwnPrefix[] = "fusor.";
inline constexpr char kChecksum[] = "fusor.crc32c";

struct Safetensors {
  std::vector<NamedTensor> tensors;  // in the order of the file
  Metadata metadata;                 // "__metadata__"

  // Null when there is none of that name.
  const NamedTensor* Find(std::string_view name) const;
};

// Reads and checks a whole file: a header that is no JSON or does not have the
// fields above, unknown dtypes, duplicate names, sizes that do not match dtype
// and shape, tensors that overlap, leave a gap or reach beyond the end, another
// checksum than that of the metadata all throw kCheckpoint with a line that
// names file, tensor, expected and got. So does a pickle of PyTorch, with the
// command that converts it.
Safetensors ReadSafetensors(const std::string& path);
// The same of a file's bytes; `path` is what messages call it.
Safetensors ParseSafetensors(const std::string& path,
                             std::span<const uint8_t> file);

// What a file must be found to be when it is read again.
struct FileSum {
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};

// Writes tensors of unique names, those with the largest elements first so
// that each is aligned, and waits until the file is safely on disk; on failure
// throws kCheckpoint and leaves an older file of that name untouched.
FileSum WriteSafetensors(const std::string& path,
                         std::span<const NamedTensor> tensors,
                         const Metadata& metadata = {});

}  // namespace fusor::runtime
