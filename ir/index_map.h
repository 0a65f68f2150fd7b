#pragma once

#include <cstdint>
#include <vector>

namespace fusor::ir {

// Index of one dimension of a value inside a loop nest: offset + scale * (index
// of loop dimension `dim`), or the constant offset if dim is -1.
struct DimMap {
  int dim = -1;
  int64_t scale = 1;
  int64_t offset = 0;
  bool operator==(const DimMap&) const = default;
};

// One entry per dimension of the value. Dimensions of extent 1 map to the
// constant 0, so that equal accesses have equal maps, unless the index can be
// outside of the value.
using IndexMap = std::vector<DimMap>;

}  // namespace fusor::ir
