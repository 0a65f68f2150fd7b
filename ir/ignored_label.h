#pragma once

#include <cstdint>

namespace fusor::ir {

// The label of pixels and tokens that do not count: PyTorch's default of
// `ignore_index`.
inline constexpr int32_t kIgnoredLabel = -100;

}  // namespace fusor::ir
