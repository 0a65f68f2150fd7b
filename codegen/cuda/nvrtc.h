#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/support/error.h"

namespace fusor::cuda {

// NVRTC for one architecture. Thread-safe.
class NvrtcCompiler {
 public:
  // `compute_capability`: 80, 90, 100. If NVRTC does not support it, the code
  // is PTX of the newest older one that it supports, which the driver compiles.
  // Throws kDevice if NVRTC cannot be opened, kUsage if it supports no older
  // one.
  explicit NvrtcCompiler(int compute_capability);

  std::string version() const;  // "nvrtc 13.0"
  int cuda() const;             // its CUDA version, 13
  // "sm_90a", or "compute_90" if the code is PTX.
  const std::string& architecture() const { return architecture_; }
  std::string options() const;  // that affect machine code, in one line

  struct Output {
    std::string code;  // a cubin, or PTX
    std::string ptx;
    std::string warning;  // the first in the log, "kernel.cu:12: .."
  };
  // Throws `code` with NVRTC's first error, which names the text `source`.
  Output Compile(const std::string& text, const std::string& source,
                 ErrorCode code) const;

 private:
  std::string architecture_;
  bool makes_ptx_ = false;
};

// Returns "NVRTC 13.0 (libnvrtc.so.13)", or what is missing.
std::string DescribeNvrtc();

// Returns the folder that NVRTC was opened from; empty without NVRTC.
std::string NvrtcFolder();

}  // namespace fusor::cuda
