#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::cpu {

// A oneDNN primitive, which is not created yet: that is the expensive part.
struct PrimitivePlan {
  dnnl::primitive_desc_base desc;
  // The primitive's argument number and desc of each argument of the call.
  std::vector<std::pair<int, dnnl::memory::desc>> args;

  int64_t workspace_bytes() const {
    return static_cast<int64_t>(desc.scratchpad_desc().get_size());
  }
};

// How a convolution is run whose kernel requires a padded weight, which no
// layout of the IR describes (e.g. three channels in bf16). The weight is
// packed into the workspace before the convolution, or unpacked from there
// afterwards.
struct WeightPacking {
  PrimitivePlan reorder;  // plain to packed; packed to plain if `unpacks`
  size_t weight = 0;      // argument of the call, a result if `unpacks`
  bool unpacks = false;
  int64_t offset = 0;  // of the packed weight in the workspace
  int64_t bytes = 0;
};

struct OneDnnPlan {
  PrimitivePlan primitive;
  std::optional<WeightPacking> packing{};

  std::string implementation() const { return primitive.desc.impl_info_str(); }
  int64_t workspace_bytes() const {
    return packing.has_value() ? packing->offset + packing->bytes
                               : primitive.workspace_bytes();
  }
};

// Returns the plan for a call; nullopt if oneDNN does not support the op or its
// types. oneDNN partitions the work for the number of threads of the calling
// thread's OpenMP regions.
std::optional<OneDnnPlan> PlanOneDnn(const codegen::LibraryCall& call);

std::string OneDnnVersion();  // "oneDNN 2.6.3"

}  // namespace fusor::cpu
