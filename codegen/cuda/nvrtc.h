#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/support/error.h"

namespace fusor::cuda {

// NVRTC for one architecture. May be used by several threads at once.
class NvrtcCompiler {
 public:
  // `compute_capability`: 80, 90, 100. Throws kDevice when NVRTC cannot be
  // opened, kUsage when it knows no such architecture.
  explicit NvrtcCompiler(int compute_capability);

  std::string version() const;  // "nvrtc 13.0"
  const std::string& architecture() const { return architecture_; }  // "sm_90a"
  std::string options() const;  // what changes machine code, in a line

  struct Output {
    std::string cubin;
    std::string ptx;
    std::string warning;  // the first of its log, "kernel.cu:12: .."
  };
  // `source` names the text in errors; throws `code` with NVRTC's first error.
  Output Compile(const std::string& text, const std::string& source,
                 ErrorCode code) const;

 private:
  std::string architecture_;
};

// "NVRTC 13.0 (libnvrtc.so.13)", or what is missing.
std::string DescribeNvrtc();

// The folder that NVRTC was opened from; empty without it.
std::string NvrtcFolder();

}  // namespace fusor::cuda
