#pragma once

// What the commands make out of their flags.

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/data/batch_source.h"
#include "runtime/session.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::codegen {
class Dumper;
}  // namespace fusor::codegen

namespace fusor::tools {

// Classes where neither the flags nor the data say.
inline constexpr int kDefaultClasses = 1000;

bool IsCifar(const ModelFlags& flags);
// Of --image-size, or the model's own.
int64_t ImageSize(const ModelFlags& flags);

// Options of the model; `classes` of the data, 0 when there is none.
models::ModelOptions MakeModelOptions(const ModelFlags& flags, int classes);

// Null without --dump-to. Throws kUsage where nothing can be written or a
// filter is malformed: to be called before anything that takes long. `part`:
// a folder inside, for one of several compilations that stand side by side.
std::shared_ptr<codegen::Dumper> OpenDumper(const DumpFlags& flags,
                                            const std::string& part = "");

// Folder of compiled kernels; empty with --kernel-cache off.
std::string KernelCacheFolder(const CompileFlags& flags);

// `dumper` may be null.
codegen::CompileOptions MakeCompileOptions(
    const CompileFlags& flags, const OptimizerFlags& optimizer,
    const std::shared_ptr<codegen::Dumper>& dumper = nullptr);

// `batch`: images an update, on all ranks.
runtime::LrScheduleOptions MakeSchedule(const OptimizerFlags& flags,
                                        int64_t batch, int64_t epochs,
                                        int64_t steps_per_epoch,
                                        int64_t total_steps);

// `communicator`: see Session.
std::unique_ptr<runtime::Session> OpenSession(
    const CompileFlags& flags, runtime::Communicator* communicator = nullptr);

// Stable keys of a compiled program, see README "JSON".
nlohmann::json ProgramJson(const ir::Graph& graph, const codegen::Plan& plan,
                           const codegen::CompileReport& report);
nlohmann::json ProgramJson(const runtime::Session& session, int program);

std::string KernelText(const codegen::Plan& plan);  // the IR of each kernel

// {"median", "min", "max"} of step times.
nlohmann::json StepJson(std::vector<double> step_ms);

// Keys of what was read in so many seconds, waiting included: data_wait_share,
// input_bound, read_megabytes_per_second, files_per_second.
nlohmann::json DataJson(const runtime::DataStats& stats, double seconds);

// What was compiled, in a few lines for people.
std::string ProgramSummary(const codegen::Plan& plan,
                           const codegen::CompileReport& report);
std::string ProgramSummary(const runtime::Session& session, int program);

// Where text for people goes: stdout, unless one of the outputs goes there
// ("-"). Throws kUsage when several do.
FILE* TextStream(const std::vector<std::string>& outputs);

// Throws kUsage when the file that `flag` names could not be written: to be
// asked before minutes of work. Empty and "-" always can.
void CheckOutput(const std::string& flag, const std::string& path);

// Makes the folder that `flag` names, and those around it. Throws kUsage.
void MakeFolder(const std::string& flag, const std::string& path);

// Writes to FILE (temporary name, then renamed) or stdout for "-"; nothing for
// an empty path.
void WriteText(const std::string& path, const std::string& text);
void WriteJson(const std::string& path, const nlohmann::json& json);

}  // namespace fusor::tools
