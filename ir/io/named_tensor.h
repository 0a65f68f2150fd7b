#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/tensor_type.h"

namespace fusor::ir {

// A tensor of a weights file or an archive.
struct NamedTensor {
  std::string name;
  TensorType type;             // row-major
  std::vector<uint8_t> bytes;  // type.num_bytes(), little-endian
};

}  // namespace fusor::ir
