#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/data/batch_source.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags/flag_groups.h"

// Creates compiler, session and output objects from flags.

namespace fusor::inspect {
class Dumper;
}  // namespace fusor::inspect

namespace fusor::tools {

// Returns an observer for runs without --dump-to: if a pass fails while graphs
// are verified, writes the graphs before and after it into a new temporary
// folder and prints its name to stderr.
codegen::CompileObserver KeepFailedPass(const DumpFlags& flags);

// Returns null without --dump-to. Throws kUsage if the output is not writable
// or a filter is malformed; call before long work. `part`: a subfolder for one
// of several compilations.
std::shared_ptr<inspect::Dumper> OpenDumper(const DumpFlags& flags,
                                            const std::string& part = "");

// Returns the folder of compiled kernels; empty with --kernel-cache off.
std::string KernelCacheFolder(const CompileFlags& flags);

// `dumper` may be null.
codegen::CompileOptions MakeCompileOptions(
    const CompileFlags& flags, const OptimizerFlags& optimizer,
    const std::shared_ptr<inspect::Dumper>& dumper = nullptr);

// `batch`: images per update, over all ranks.
runtime::LrScheduleOptions MakeSchedule(const OptimizerFlags& flags,
                                        int64_t batch, int64_t epochs,
                                        int64_t steps_per_epoch,
                                        int64_t total_steps);

// Throws kUsage if --cuda-graph-steps contradicts other flags.
void CheckGraphSteps(const CompileFlags& flags);

// `communicator`: see Session.
std::unique_ptr<runtime::Session> OpenSession(
    const CompileFlags& flags, runtime::Communicator* communicator = nullptr);

// Return stable keys of a compiled program; see README "JSON".
nlohmann::json ProgramJson(const ir::Graph& graph, const codegen::Plan& plan,
                           const codegen::CompileReport& report);
nlohmann::json ProgramJson(const runtime::Program& program);

std::string KernelText(const codegen::Plan& plan);  // IR of each kernel

// Returns {"median", "min", "max"} of step times.
nlohmann::json StepJson(std::vector<double> step_ms);

// Returns keys about reading data for `seconds`, waiting included:
// data_wait_share, input_bound, read_megabytes_per_second, files_per_second.
nlohmann::json DataJson(const runtime::DataStats& stats, double seconds);

// Summarises a compiled program in a few lines of text.
std::string ProgramSummary(const codegen::Plan& plan,
                           const codegen::CompileReport& report);
std::string ProgramSummary(const runtime::Program& program);

// Returns the stream for text: stderr if one of the outputs is stdout ("-"),
// otherwise stdout. Throws kUsage if several are.
FILE* TextStream(const std::vector<std::string>& outputs);

// Throws kUsage if the file that `flag` names cannot be written. Call before
// long work. Accepts "" and "-".
void CheckOutput(const std::string& flag, const std::string& path);

// Creates the folder that `flag` names, and its parents. Throws kUsage.
void MakeFolder(const std::string& flag, const std::string& path);

// Write to a file (temporary name, then renamed), or to stdout for "-". Do
// nothing for an empty path.
void WriteText(const std::string& path, const std::string& text);
void WriteJson(const std::string& path, const nlohmann::json& json);

}  // namespace fusor::tools
