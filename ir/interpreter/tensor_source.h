#pragma once

// Tensors that are read in pieces, so that large ones need not be in memory a
// second time.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/tensor_type.h"

namespace fusor::ir {

// A named tensor of a file, of a state or in memory.
struct TensorSource {
  std::string name;
  TensorType type;  // row-major
  // Copies the bytes from `offset` on. REQUIRES: offset and size are multiples
  // of the element size. May need memory unless reads go from start to end.
  std::function<void(int64_t offset, std::span<uint8_t> bytes)> read;
};

// Returns a tensor in memory. `bytes` has type.num_bytes() and must outlive it.
TensorSource SourceOf(std::string name, TensorType type,
                      std::span<const uint8_t> bytes);

// Returns a tensor whose elements are those of `source`, rounded to `dtype`.
TensorSource Converted(TensorSource source, DType dtype);

// Reads the whole tensor.
std::vector<uint8_t> ReadWhole(const TensorSource& source);

// Reads the tensor from start to end; calls `use` with each piece of at most
// 1 MiB and its offset in bytes.
void ForEachPiece(
    const TensorSource& source,
    const std::function<void(int64_t offset, std::span<const uint8_t> piece)>&
        use);

}  // namespace fusor::ir
