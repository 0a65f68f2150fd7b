#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

// Returns one row per decision of a pass: pass, subject, location, source,
// accepted, estimated time with and without the rewrite, reason. Times are in
// ns, empty if there is no estimate.
std::string DecisionsCsv(const std::vector<passes::Decision>& decisions);

// Returns the decisions of mixed precision: a row per model part, a column per
// decision, and a row "total". Empty without decisions.
std::string PrecisionCsv(const std::vector<passes::Decision>& decisions);

// Returns how each kernel of the schedule runs: a row per phase with its grid.
std::string LaunchesCsv(const Plan& plan);

// Writes one file of a program's dump.
using WriteFile =
    std::function<void(const std::string& path, std::string_view bytes)>;

// Writes the library plans of the calls that have one, as NNNN.OP.json.
void DumpCalls(const Plan& plan, const WriteFile& write);

// Writes each kernel's IR as NNNN.NAME.txt, and what the target compiles it to.
void DumpKernels(const Plan& plan, const TargetCompiler& compiler,
                 const WriteFile& write);

}  // namespace fusor::codegen
