#pragma once

#include <optional>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/tensor_type.h"

namespace fusor::codegen {

// Plan for a kernel that computes a tensor in memory order and also stores
// copies of it in other blocked layouts. It processes groups of a few vectors,
// so that each copy gets runs of contiguous elements.
struct TilePlan {
  // Loops over blocks, slowest first. Strides in elements, of the tensor and of
  // each copy.
  struct Loop {
    int64_t extent = 1;
    int64_t stride = 0;
    std::vector<int64_t> copy_strides{};
  };
  std::vector<Loop> loops;
  int64_t groups = 1;   // per block
  int64_t vectors = 1;  // per group
  // One copy: the offset of its first group in a block, the stride between
  // groups, and the element order within a group.
  struct Copy {
    int64_t start = 0;
    int64_t stride = 0;
    TileStore tile{};  // without sources
  };
  std::vector<Copy> copies;
};

// Returns nullopt unless all layouts tile the dimensions into blocks of the
// same shape, whose groups of whole vectors of `lanes` give each copy runs of
// at least 4 elements.
std::optional<TilePlan> PlanTiles(const ir::TensorType& type,
                                  const std::vector<ir::TensorType>& copies,
                                  int64_t lanes);

// Returns the kernel with other stores. It has one phase over a flat vector
// axis and no loops. Its buffers from `first_copy` on are copies, stored in the
// order of the flat tensor; the result stores them as planned. REQUIRES: `plan`
// is PlanTiles of the kernel's tensor.
Kernel StoreTiles(const TilePlan& plan, int first_copy, const Kernel& kernel);

}  // namespace fusor::codegen
