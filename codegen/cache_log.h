#pragma once

// Why a kernel was not in the cache: what each kernel there was made of, by
// what, is noted beside it, and a kernel that is missing is compared with the
// one that is most like it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::codegen {

// What a kernel was made of, and by what.
struct KernelOrigin {
  std::string kernel;   // PROGRAM/KERNEL; not part of the cache's key
  uint64_t source = 0;  // hash of its loops, and of text in their place
  std::string target{};
  CodegenFingerprint facts{};
  // Of the passes, KEY=VALUE..; in no key, but they tell why a kernel of the
  // same name has another source.
  std::string settings{};
  // Types of the program's data inputs, NAME=TYPE..; in no key either.
  std::string inputs{};
  // Parts of the source. They tell which of several changes made it another.
  uint64_t skeleton = 0;    // hash of it without its numbers
  uint64_t extents = 0;     // hash of the lengths of its loops
  std::string constants{};  // its scalars, each once, separated by blanks
};

// Fills in the parts of the source, the text of a kernel's loops.
void SetSourceParts(const std::string& source, KernelOrigin& origin);

// Kernels that the cache lacked for one and the same reason.
struct CacheMiss {
  // "fusor", "compiler", "target", "options", "inputs" or "source", one or
  // several: what changed since the most similar kernel that was compiled
  // before. Or "new": there is none; or "lost": nothing changed, the file was
  // dropped or damaged.
  std::vector<std::string> changed;
  std::string reason;  // the same for people, "options changed: a=1 -> a=2"
  int64_t kernels = 0;
};

// What a compilation found in the cache.
struct CacheReport {
  bool used = false;    // there was a cache
  std::string failure;  // why kernels could not be kept; empty: they are
  int64_t hits = 0;
  std::vector<CacheMiss> misses;  // in the order of their first kernels

  int64_t missed() const;
  void Add(CacheMiss miss);
  // "41 hits, 3 misses: 2 new kernels, 1 because options changed: ...".
  std::string Text() const;
};

// The origins of the kernels in one cache folder, and of some that were dropped
// from it: the last few ten thousand. Losing the file costs explanations alone;
// what is malformed in it is passed over.
class CacheLog {
 public:
  // Reads what the folder has.
  explicit CacheLog(const std::string& folder);

  // Compares with what was there when the log was opened.
  CacheMiss Explain(const KernelOrigin& origin) const;

  // Adds to the file; does nothing where that cannot be written.
  void Append(std::span<const KernelOrigin> origins) const;

 private:
  std::string path_;
  std::vector<KernelOrigin> origins_;  // oldest first
};

}  // namespace fusor::codegen
