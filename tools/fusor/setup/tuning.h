#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// "--tune", for commands that can run what they compile.
void AddTuneFlag(CLI::App& app, CompileFlags& flags);

// With --tune: measures the convolutions of a model's step on the session's
// device, before it has a program, writes the file of --choices or that of the
// default place, and lets `options` use it. Progress goes to stderr if that is
// a terminal, results to `text`. Returns {"seconds", "file", "choices",
// "candidates"}, null when nothing was measured. Throws kUsage, before anything
// is measured, where the file cannot be written.
nlohmann::json TuneIfAsked(const CompileFlags& flags, const ir::Graph& forward,
                           codegen::ProgramKind kind, runtime::Session& session,
                           codegen::CompileOptions& options, FILE* text);

}  // namespace fusor::tools
