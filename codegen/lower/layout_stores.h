#pragma once

#include <optional>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/tensor_type.h"

namespace fusor::codegen {

// How a kernel that computes a tensor in the order of its memory, vector by
// vector, stores copies of it whose blocked layouts order the elements of a
// block otherwise. Vectors are taken a few at a time, in which each copy has
// runs of elements that lie together.
struct TilePlan {
  // Loops over blocks, slowest first, with what each step advances, in
  // elements: the tensor, and each copy.
  struct Loop {
    int64_t extent = 1;
    int64_t stride = 0;
    std::vector<int64_t> copy_strides{};
  };
  std::vector<Loop> loops;
  int64_t groups = 1;   // of a block
  int64_t vectors = 1;  // of a group
  // Of each copy: where its first group starts, how far the next one is, and
  // the order and runs within a group.
  struct Copy {
    int64_t start = 0;
    int64_t stride = 0;
    TileStore tile{};  // without sources
  };
  std::vector<Copy> copies;
};

// Nullopt where the layouts have no blocks of the same parts of the dimensions,
// in whole vectors of `lanes`.
std::optional<TilePlan> PlanTiles(const ir::TensorType& type,
                                  const std::vector<ir::TensorType>& copies,
                                  int64_t lanes);

// Turns a kernel of one phase over a flat vector axis, whose last buffers, from
// `first_copy` on, are copies in the order of the flat tensor, into one that
// stores them as the plan says. REQUIRES: PlanTiles made the plan of the
// kernel's tensor; no loops.
void StoreTiles(const TilePlan& plan, int first_copy, Kernel& kernel);

}  // namespace fusor::codegen
