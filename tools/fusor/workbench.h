#pragma once

// What the commands make out of their flags.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/data/batch_source.h"
#include "runtime/session.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags.h"

namespace fusor::codegen {
class Dumper;
}  // namespace fusor::codegen

namespace fusor::tools {

// Options of the model; `classes` of the data, 0 when there is none.
models::ModelOptions MakeModelOptions(const ModelFlags& flags, int classes);

// Null without --dump-to. Throws kUsage where nothing can be written or a
// filter is malformed: to be called before anything that takes long.
std::shared_ptr<codegen::Dumper> OpenDumper(const DumpFlags& flags);

// `dumper` may be null.
codegen::CompileOptions MakeCompileOptions(
    const CompileFlags& flags, const OptimizerFlags& optimizer,
    const std::shared_ptr<codegen::Dumper>& dumper = nullptr);

runtime::LrScheduleOptions MakeSchedule(const OptimizerFlags& flags,
                                        int64_t epochs, int64_t steps_per_epoch,
                                        int64_t total_steps);

std::unique_ptr<runtime::Session> OpenSession(const CompileFlags& flags);

enum class Split { kTrain, kVal };

// Batches of DATA/train or DATA/val (or DATA itself, when it has neither), or
// synthetic ones. Null for kVal when there is no such folder. Sets `classes`.
std::unique_ptr<runtime::BatchSource> OpenData(const DataFlags& data,
                                               const ModelFlags& model,
                                               Split split, int* classes);

// Stable keys of a compiled program, see README "JSON".
nlohmann::json ProgramJson(const ir::Graph& graph, const codegen::Plan& plan,
                           const codegen::CompileReport& report);
nlohmann::json ProgramJson(const runtime::Session& session, int program);

std::string KernelText(const codegen::Plan& plan);  // the IR of each kernel

// {"median", "min", "max"} of step times.
nlohmann::json StepJson(std::vector<double> step_ms);

// What was compiled, in a few lines for people.
std::string ProgramSummary(const codegen::Plan& plan,
                           const codegen::CompileReport& report);
std::string ProgramSummary(const runtime::Session& session, int program);

// Throws kUsage unless a file of that name could be written: to be asked before
// minutes of work. Empty and "-" always can.
void CheckWritable(const std::string& path);

// Writes to FILE (temporary name, then renamed) or stdout for "-"; nothing for
// an empty path.
void WriteText(const std::string& path, const std::string& text);
void WriteJson(const std::string& path, const nlohmann::json& json);

}  // namespace fusor::tools
