#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/target_compiler.h"

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

// --- Explanation of misses ---------------------------------------------------
//
// A log in the cache folder records what every compiled kernel was made from. A
// missing kernel is compared with the most similar logged one.

// Everything that a compiled kernel was made from.
struct KernelOrigin {
  std::string kernel;   // PROGRAM/KERNEL; not part of the cache key
  uint64_t source = 0;  // hash of its loops and of edited text, if any
  std::string target{};
  CodegenFingerprint facts{};
  // Pass options, KEY=VALUE... Not part of the cache key: they explain why a
  // kernel of the same name has another source.
  std::string settings{};
  // Types of the program's data inputs, NAME=TYPE... Not part of the cache key.
  std::string inputs{};
  // Parts of the source. They tell which of several changes affected it.
  uint64_t skeleton = 0;    // hash of the source without its numbers
  uint64_t extents = 0;     // hash of the loop extents
  std::string constants{};  // its distinct scalars, separated by blanks
};

// Sets skeleton, extents and constants from `source`, the text of the loops.
void SetSourceParts(const std::string& source, KernelOrigin& origin);

// Kernels that the cache lacked for the same reason.
struct CacheMiss {
  // What changed since the most similar logged kernel: one or several of
  // "fusor", "compiler", "target", "options", "inputs" and "source". Or "new":
  // no kernel is similar. Or "lost": nothing changed, but the file was evicted
  // or is corrupt.
  std::vector<std::string> changed;
  std::string reason;  // readable, "with options changed: a=1 -> a=2"
  int64_t kernels = 0;
};

// Cache statistics of one compilation.
struct CacheReport {
  bool used = false;    // whether a cache folder was given
  std::string failure;  // why kernels could not be stored; empty: no failure
  int64_t hits = 0;
  std::vector<CacheMiss> misses;  // in the order of their first kernels

  int64_t missed() const;
  void Add(CacheMiss miss);
  // Returns "41 hits, 3 misses: 2 new; 1 with options changed: ...".
  std::string Text() const;
};

// The origins of the kernels in one cache folder, and of some that were evicted
// from it. Above 4 MiB the older half is dropped. Losing the file loses only
// explanations. Malformed lines are skipped.
class CacheLog {
 public:
  // Reads the folder's log.
  explicit CacheLog(const std::string& folder);

  // Returns the reason of one miss. Compares with the log as it was opened.
  CacheMiss Explain(const KernelOrigin& origin) const;

  // Appends to the file; does nothing if the file is not writable.
  void Append(std::span<const KernelOrigin> origins) const;

 private:
  std::string path_;
  std::vector<KernelOrigin> origins_;  // oldest first
};

}  // namespace fusor::codegen
