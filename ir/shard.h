#pragma once

// Sharded state. Each rank stores a flat shard: the elements of the whole
// tensor from `rank * ShardElements` on, padded at the end. Elements are in the
// physical order of the parameter's layout, so that splitting or gathering
// copies nothing.

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/attrs.h"

namespace fusor::ir {

// Returns the elements per shard, a multiple of 64 (and of 64 bytes).
constexpr int64_t ShardElements(int64_t elements, int64_t ranks) {
  const int64_t part = (elements + ranks - 1) / ranks;
  return (part + 63) / 64 * 64;
}

// Input attribute: the parameter of this shard or of this shard's state.
inline constexpr char kShardOf[] = "shard_of";

inline bool IsShard(const Attrs& attrs) { return attrs.Has(kShardOf); }

// Names the shard of a parameter that a rank updates, in the parameter's dtype.
// The shards of all ranks make up the parameter.
inline std::string ShardName(std::string_view parameter) {
  return "shard/" + std::string(parameter);
}

}  // namespace fusor::ir
