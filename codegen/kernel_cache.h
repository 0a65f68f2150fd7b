#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fusor::codegen {

// Compiled kernels on disk, a file each, shared by all processes of a user.
// Losing it costs time only: whatever is missing, torn, corrupt or written by a
// colliding key is a miss, and what cannot be written is not kept. Safe from
// several threads and processes.
//
// The machine code is run as it is found, so nothing is read from a folder that
// another user owns or that every user may write.
class KernelCache {
 public:
  // `folder` is made when first needed. Trim keeps it below `capacity_bytes`.
  explicit KernelCache(std::string folder,
                       int64_t capacity_bytes = int64_t{512} << 20);

  // The bytes stored under exactly this key; marks them as used now.
  std::optional<std::string> Find(std::string_view key) const;

  // Returns why it could not be kept, with the path; empty if it was.
  std::string Store(std::string_view key, std::string_view binary) const;

  // Deletes the least recently used files above the capacity.
  void Trim() const;

  // Where the key is or would be stored.
  std::string PathOf(std::string_view key) const;

 private:
  std::string folder_;
  int64_t capacity_bytes_;
};

}  // namespace fusor::codegen
