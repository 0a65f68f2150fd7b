#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"

namespace fusor::codegen {

// What passes decided: pass, subject, accepted, modelled time with the decision
// and without, reason. Times in ns, empty where there is no model.
std::string DecisionsCsv(const std::vector<passes::Decision>& decisions);

// What mixed precision decided by part of the model, a column a decision, with
// a row "total". Empty without any.
std::string PrecisionCsv(const std::vector<passes::Decision>& decisions);

// How each kernel of the schedule runs: a row a phase with its grid.
std::string LaunchesCsv(const Plan& plan);

// A file of a program's dump.
using WriteFile =
    std::function<void(const std::string& path, std::string_view bytes)>;

// What libraries need to run the calls: NNNN.OP.json, of those that have plans.
void DumpCalls(const Plan& plan, const WriteFile& write);

// The kernels: their IR as NNNN.NAME.txt, and what the target makes of it.
void DumpKernels(const Plan& plan, const TargetCompiler& compiler,
                 const WriteFile& write);

}  // namespace fusor::codegen
