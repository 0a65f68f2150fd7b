#pragma once

#include <string>

#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::tools {

// Flags that affect compilation.
struct VariantFlags {
  CompileFlags compile;
  OptimizerFlags optimizer;
  RankFlags ranks;
};

struct ParsedVariant {
  std::string name;  // the text of the variant
  VariantFlags flags;
  bool of_ranks = false;  // sets an option that only applies to several ranks
};

// Parses a variant: comma-separated KEY=VALUE, which override the `shared`
// options. KEY is the long name of a flag of VariantFlags. Flags without a
// value take on or off. List values (passes, ops, fuel) are separated by "+"
// and are appended to the shared ones. dtype, amp or opt-level replaces all
// three. `flag`, e.g. "--a", names the variant in errors. Throws kUsage for
// unknown keys, with the closest known one.
ParsedVariant ParseVariant(const std::string& flag, const std::string& text,
                           const VariantFlags& shared);

}  // namespace fusor::tools
