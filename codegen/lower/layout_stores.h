#pragma once

#include <optional>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/tensor_type.h"

namespace fusor::codegen {

// Plan for a kernel that computes a tensor in memory order and also stores
// copies of it in other layouts. It processes groups of a few vectors, so that
// each copy gets runs of contiguous elements.
struct TilePlan {
  // Loops over groups, slowest first. Strides in elements, of the tensor and of
  // each copy.
  struct Loop {
    int64_t extent = 1;
    int64_t stride = 0;
    std::vector<int64_t> copy_strides{};
  };
  std::vector<Loop> loops;
  // The offset in the tensor of each vector of the first group.
  std::vector<int64_t> vectors;
  // How a group is stored in each copy; without sources.
  std::vector<TileStore> copies;
};

// Returns nullopt unless there is a group of at most 16 vectors of `lanes`
// contiguous elements that gives each copy runs of at least 4 elements.
// REQUIRES: the tiles of all layouts nest, and the types have equal shapes.
std::optional<TilePlan> PlanTiles(const ir::TensorType& type,
                                  const std::vector<ir::TensorType>& copies,
                                  int64_t lanes);

// Returns the kernel with other stores. It has one phase over a flat vector
// axis and no loops. Its buffers from `first_copy` on are copies, stored in the
// order of the flat tensor; the result stores them as planned. REQUIRES: `plan`
// is PlanTiles of the kernel's tensor.
Kernel StoreTiles(const TilePlan& plan, int first_copy, const Kernel& kernel);

}  // namespace fusor::codegen
