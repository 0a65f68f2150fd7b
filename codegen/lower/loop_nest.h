#pragma once

// The loops over a fusion's domain, in the physical order of its main tensor,
// and the offsets of tensors in terms of them.

#include <span>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/index_map.h"
#include "ir/tensor_type.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::codegen {

// A loop: one or more adjacent physical axes of the domain that every access
// walks with one stride.
struct LoopAxis {
  std::string name;
  int64_t extent = 1;
  bool folded = false;  // a reduction runs along it
};

// One tensor (or logical coordinate) as the loops see it.
struct Access {
  ir::TensorType type;
  ir::IndexMap map;
};

class LoopNest {
 public:
  // `accesses`: everything that Offset will be asked for. Tile boundaries of
  // all of them refine the axes; then neighbours that all of them walk with
  // one stride are merged, kept and folded axes apart. Folded ones only with
  // `merge_folded`: without it the order of a sum does not depend on what else
  // the loops read.
  LoopNest(const passes::IterationDomain& domain,
           std::span<const Access> accesses, bool merge_folded = true);

  // Kept axes slowest first, then folded axes slowest first; no axis of extent
  // 1. The fastest physical axis is the last of its class.
  const std::vector<LoopAxis>& axes() const { return merged_; }
  // Position in axes() of the fastest physical axis; -1 when there is none.
  int fastest() const { return fastest_; }

  // Element offset; axis numbers are positions in axes().
  Index Offset(const Access& access) const;

 private:
  struct RawAxis {
    int dim;
    int64_t step;
    int64_t extent;
    bool folded;
    int merged = -1;
  };
  Index RawOffset(const Access& access) const;
  Index Project(const Index& raw) const;
  void MergeAxes(std::span<const Access> accesses, bool merge_folded);

  std::vector<RawAxis> raw_;
  std::vector<LoopAxis> merged_;
  std::vector<int> innermost_;  // merged -> its fastest raw axis
  int fastest_ = -1;
};

}  // namespace fusor::codegen
