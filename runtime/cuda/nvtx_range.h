#pragma once

// Marks a host range for profilers, if the build has NVTX's header. Costs only
// a branch if no profiler is attached.

#ifdef FUSOR_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace fusor::cuda {

class NvtxRange {
 public:
  // `name` is copied.
  explicit NvtxRange([[maybe_unused]] const char* name) {
#ifdef FUSOR_NVTX
    nvtxRangePushA(name);
#endif
  }
  ~NvtxRange() {
#ifdef FUSOR_NVTX
    nvtxRangePop();
#endif
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace fusor::cuda
