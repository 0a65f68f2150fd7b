#pragma once

#include "codegen/compiler.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Returns an observer for runs without --dump-to: if a pass fails while graphs
// are verified, writes the graphs before and after it into a new temporary
// folder and prints its name to stderr.
codegen::CompileObserver KeepFailedPass(const DumpFlags& flags);

}  // namespace fusor::tools
