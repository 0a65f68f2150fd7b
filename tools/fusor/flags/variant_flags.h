#pragma once

#include <string>

#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::tools {

// Flags that decide what is compiled.
struct VariantFlags {
  CompileFlags compile;
  OptimizerFlags optimizer;
  RankFlags ranks;
};

struct ParsedVariant {
  std::string name;  // as it was written
  VariantFlags flags;
  bool of_ranks = false;  // it names an option that several ranks alone have
};

// The variant that `text` makes of the options that all variants share:
// comma-separated KEY=VALUE, where KEY is the long name of a flag of
// VariantFlags and on or off is the value of one that takes none. Passes, ops
// and fuel of one key are separated by "+", and come on top of those that are
// shared; dtype, amp and opt-level go in place of all three. `flag`, "--a",
// names it in errors; throws kUsage, with the nearest key, on what it does not
// know.
ParsedVariant ParseVariant(const std::string& flag, const std::string& text,
                           const VariantFlags& shared);

}  // namespace fusor::tools
