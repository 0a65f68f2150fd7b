#pragma once

// State of which each rank keeps a part: flat, the elements of the whole tensor
// from `rank * ShardElements` on, as far as there are any. They are in the
// physical order of the parameter's layout, so that nothing is copied to cut a
// parameter or a gradient, or to put one together.

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/attrs.h"

namespace fusor::ir {

// A multiple of 64 bytes, whatever the dtype.
constexpr int64_t ShardElements(int64_t elements, int64_t ranks) {
  const int64_t part = (elements + ranks - 1) / ranks;
  return (part + 63) / 64 * 64;
}

// An input's attribute: the parameter of which, or of whose state, it is a
// part.
inline constexpr char kShardOf[] = "shard_of";

inline bool IsShard(const Attrs& attrs) { return attrs.Has(kShardOf); }

// The part of a parameter that its rank updates, in the parameter's dtype. The
// parameter itself is all ranks' parts together.
inline std::string ShardName(std::string_view parameter) {
  return "shard/" + std::string(parameter);
}

}  // namespace fusor::ir
