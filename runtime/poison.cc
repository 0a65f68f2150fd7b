#include "runtime/poison.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fusor::runtime {

void Poison(Stream& stream, void* data, size_t bytes) {
  // From the low bits: as bf16 three signalling NaNs and a quiet one; as f32 a
  // signalling and a quiet one; as f64 a signalling one; as f16 all quiet.
  constexpr uint64_t kPattern = 0x7ff17fa17fa17fa1;
  // Never freed: a stream may still copy it at exit.
  static const auto& block =
      *new std::vector<uint64_t>(size_t{1} << 17, kPattern);
  const size_t chunk = block.size() * sizeof(kPattern);
  for (size_t at = 0; at < bytes; at += chunk) {
    stream.CopyToDevice(static_cast<char*>(data) + at, block.data(),
                        std::min(chunk, bytes - at));
  }
}

}  // namespace fusor::runtime
