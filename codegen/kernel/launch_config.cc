#include "codegen/kernel/launch_config.h"

#include <algorithm>

namespace fusor::codegen {

int ThreadWidth(const std::vector<KernelBuffer>& buffers) {
  const bool narrow = std::any_of(
      buffers.begin(), buffers.end(), [](const KernelBuffer& buffer) {
        return buffer.elements > 1 && ir::DTypeSize(buffer.dtype) <= 2;
      });
  return narrow ? 8 : 4;
}

int64_t LanesFor(int64_t extent, int64_t least, int64_t most) {
  int64_t lanes = least;
  while (lanes < extent && lanes < most) lanes *= 2;
  return lanes;
}

int64_t LargestDivisor(int64_t n, int64_t limit) {
  for (int64_t d = std::min(n, limit); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

}  // namespace fusor::codegen
