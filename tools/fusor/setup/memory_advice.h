#pragma once

#include <cstdint>
#include <functional>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Bytes in MiB.
double Mib(int64_t bytes);

// A batch size below `batch` for which `needed`, which must not decrease,
// stays within `free`; near the largest one. 0 when there is none. Calls
// `needed` a few times, for the sizes 1, 2 and where it expects the limit.
int64_t FittingBatch(int64_t batch, int64_t free,
                     const std::function<int64_t(int64_t)>& needed);

// The largest batch size for which `needed` stays within `free`: one more needs
// more. 0 when there is none, at most kLargestBatch. Calls `needed` some ten
// times.
inline constexpr int64_t kLargestBatch = 1 << 16;
int64_t LargestBatch(int64_t free,
                     const std::function<int64_t(int64_t)>& needed);

// The model's plan, without machine code, whatever memory it needs.
codegen::Plan PlanOf(const codegen::TargetCompiler& compiler,
                     const std::string& arch, models::Phase phase,
                     const models::ModelOptions& model,
                     codegen::CompileOptions options);
// Of all arenas.
int64_t PlannedBytes(const codegen::Plan& plan);

// Main memory that a process takes beside arenas and data: what it has once it
// has planned, and what compiling and running take on top. 0 for a device with
// memory of its own.
int64_t RuntimeBytes(const codegen::TargetCompiler& compiler);

// Adds the model as the session's first program. `data_bytes`: main memory
// that the batches at hand will take, proportional to the batch size; a GPU has
// memory of its own. Throws what Session::AddProgram throws; kOutOfMemory names
// a batch size that fits, or what the state needs if none does.
int AddFirstProgram(runtime::Session& session, const CompileFlags& flags,
                    const std::string& arch, models::Phase phase,
                    const models::ModelOptions& model,
                    codegen::CompileOptions options, int64_t data_bytes);

}  // namespace fusor::tools
