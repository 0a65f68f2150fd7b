#pragma once

#include "codegen/compiler.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Where no --dump-to was given: writes both sides of a pass that fails while
// graphs are verified into a new folder for temporary files, and names that on
// stderr.
codegen::CompileObserver KeepFailedPass(const DumpFlags& flags);

}  // namespace fusor::tools
