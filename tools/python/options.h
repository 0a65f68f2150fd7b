#pragma once

#include <nanobind/nanobind.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::python {

// The keywords of fusor.compile and fusor.compare. They are the command line's
// flags, with '_' in place of '-'.
struct Options {
  tools::ModelFlags model;
  tools::CompileFlags compile;
  tools::OptimizerFlags optimizer;
  tools::RankFlags ranks;
  uint64_t seed = 0;
  std::set<std::string> given;  // keywords
  // Words of those that a program file keeps.
  std::vector<std::string> kept;
};

// Parses keywords as a command line is parsed. A flag without a value takes a
// bool, `on` or `off` may also be a bool, a list may be a list or a tuple. None
// is as if not given. Throws kUsage, naming the keyword, for an unknown one and
// for a bad value.
Options ParseOptions(const nanobind::dict& keywords);

// Returns the words of a command line for keywords, in their order:
// "--batch-size=8". Throws kUsage for a keyword that is no flag of `command`,
// with the nearest one, and for a value that is not true or false of a flag
// without a value.
std::vector<std::string> WordsOf(const CLI::App& command,
                                 const nanobind::dict& keywords);

// Parses keywords as the command line of `app`. Throws kUsage, naming the
// keyword.
void ParseKeywords(CLI::App& app, const nanobind::dict& keywords);

// Returns the text of a variant for tools::ParseVariant: "fusion=off,amp=on".
std::string VariantText(const nanobind::dict& keywords);

// Returns an error message with flags as keywords: "--batch-size" becomes
// "batch_size".
std::string WithKeywords(const std::string& message);

}  // namespace fusor::python
