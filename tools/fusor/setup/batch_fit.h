#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Converts bytes to MiB.
double Mib(int64_t bytes);

// Returns a batch size below `batch`, close to the largest one, for which
// `needed` is at most `free`. Returns 0 if there is none. `needed` must not
// decrease. Calls it a few times: for 1, 2 and near the expected limit.
int64_t FittingBatch(int64_t batch, int64_t free,
                     const std::function<int64_t(int64_t)>& needed);

// Returns the largest batch size, up to kLargestBatch, for which `needed` is at
// most `free`. Returns 0 if there is none. Calls `needed` about ten times.
inline constexpr int64_t kLargestBatch = 1 << 16;
int64_t LargestBatch(int64_t free,
                     const std::function<int64_t(int64_t)>& needed);

// Plans the model's program, without machine code and without a memory limit.
codegen::CompiledProgram PlanOf(const codegen::TargetCompiler& compiler,
                                const std::string& arch, models::Phase phase,
                                const models::ModelOptions& model,
                                codegen::CompileOptions options);
// Returns the bytes of all arenas.
int64_t PlannedBytes(const codegen::Plan& plan);

// Host memory of a run besides its arenas. Ignored for a GPU, which
// has separate memory.
struct HostUse {
  int64_t data_bytes = 0;  // of batches; proportional to the batch size
  bool saves = false;      // checkpoints: a copy of the state is written
  bool loads = false;      // a checkpoint or weights
};

// Returns the estimated peak memory of a run with these programs, which are all
// programs of the session and have not run yet, in bytes: of the process, or of
// the GPU. The first program is the one whose state is saved and loaded.
int64_t NeededBytes(const runtime::Session& session,
                    const std::vector<const runtime::Program*>& programs,
                    const HostUse& use);

// Throws kOutOfMemory if there is no room for what the run keeps in host memory
// besides the arenas of its first program, which was just added.
void CheckHostRoom(const runtime::Session& session,
                   const runtime::Program& program, const HostUse& use);

// Adds the model as the session's first program. Throws what Session::Compile
// and CheckHostRoom throw. kOutOfMemory names a batch size that fits, or else
// the size of the state.
runtime::Program& AddFirstProgram(runtime::Session& session,
                                  const CompileFlags& flags,
                                  const std::string& arch, models::Phase phase,
                                  const models::ModelOptions& model,
                                  codegen::CompileOptions options,
                                  const HostUse& use);

struct MaxBatchFlags {
  bool find = false;
  int64_t memory_mib = 0;  // 0: the device's free memory
};
void AddMaxBatchFlags(CLI::App& app, MaxBatchFlags& flags);

// The training step whose largest batch size is searched.
struct SearchedStep {
  std::string arch;
  models::ModelOptions model;
  codegen::CompileOptions compile;
  // Returns the bytes of host memory for the data of a batch size.
  std::function<int64_t(int64_t batch)> data_bytes;
};

// Finds the largest batch size that fits by planning the step repeatedly. Runs
// nothing; with MaxBatchFlags::memory_mib no device is needed. Prints to `text`
// the batch size, its memory, the batch size of a run that saves checkpoints,
// and why one image more does not fit. Throws kOutOfMemory if not even one
// image fits.
nlohmann::json FindMaxBatch(const MaxBatchFlags& flags,
                            const CompileFlags& compile,
                            const SearchedStep& step, FILE* text);

}  // namespace fusor::tools
