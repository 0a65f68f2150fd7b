#pragma once

// The loop nest over a fusion's domain, in the physical order of its main
// tensor, and tensor offsets as functions of the loop indices.

#include <span>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "ir/index_map.h"
#include "ir/tensor_type.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

// A loop: one or more adjacent physical axes of the domain, merged because
// every access has a single stride along them.
struct LoopAxis {
  std::string name;
  int64_t extent = 1;
  bool folded = false;  // a reduction axis
};

// A tensor, or a logical coordinate, and its index map from the domain.
struct Access {
  ir::TensorType type;
  ir::IndexMap map;
};

class LoopNest {
 public:
  // `accesses`: everything that Offset will be called with. Splits the domain's
  // axes at the tile boundaries of all accesses. Then merges adjacent axes of
  // the same kind, parallel or reduction, along which every access has a single
  // stride. Merges reduction axes only with `merge_folded`: without it, the
  // order of a sum does not depend on what else the loops read.
  LoopNest(const passes::IterationDomain& domain,
           std::span<const Access> accesses, bool merge_folded = true);

  // Parallel axes slowest first, then reduction axes slowest first; none of
  // extent 1. The fastest physical axis is the last of its kind.
  const std::vector<LoopAxis>& axes() const { return merged_; }
  // Position in axes() of the fastest physical axis; -1 if there is none.
  int fastest() const { return fastest_; }

  // Whether rows of a tensor that is reduced continue along another parallel
  // axis where the fastest one ends: with channels last, next to a tensor with
  // channels in blocks.
  bool divides_rows() const { return divides_rows_; }

  // Returns the element offset if parts[a], kernel axes, add up to the index of
  // axes()[a]. Sorted by kernel axis.
  Index Offset(const Access& access,
               std::span<const std::vector<AxisPart>> parts) const;

 private:
  struct RawAxis {
    int dim;
    int64_t step;
    int64_t extent;
    bool folded;
    int merged = -1;
  };
  Index RawOffset(const Access& access) const;
  void MergeAxes(std::span<const Access> accesses, bool merge_folded);
  bool DividesRows(const Access& access) const;

  std::vector<RawAxis> raw_;
  std::vector<LoopAxis> merged_;
  std::vector<int> innermost_;  // merged -> its fastest raw axis
  int fastest_ = -1;
  bool divides_rows_ = false;
};

}  // namespace fusor::codegen
