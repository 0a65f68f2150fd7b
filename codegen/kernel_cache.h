#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fusor::codegen {

// Cache of compiled kernels on disk, one file per kernel, shared by all
// processes of a user. A file that is missing, truncated, corrupt or stored
// under a colliding key is a miss. A failed write is reported, not thrown. Safe
// for concurrent use by threads and processes.
//
// Machine code is executed without further checks, so nothing is read from a
// folder that another user owns or that is world-writable.
class KernelCache {
 public:
  // Store creates `folder` on demand. Trim keeps it within `capacity_bytes`.
  explicit KernelCache(std::string folder,
                       int64_t capacity_bytes = int64_t{512} << 20);

  // Returns the binary stored under exactly this key and marks it as used now.
  std::optional<std::string> Find(std::string_view key) const;

  // Stores the binary. Returns the error with its path; empty on success.
  std::string Store(std::string_view key, std::string_view binary) const;

  // Deletes the least recently used files above the capacity.
  void Trim() const;

  // Returns the path under which the key is or would be stored.
  std::string PathOf(std::string_view key) const;

 private:
  std::string folder_;
  int64_t capacity_bytes_;
};

}  // namespace fusor::codegen
