#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

// Declares "--tune", for commands that can run what they compile.
void AddTuneFlag(CLI::App& app, CompileFlags& flags);

// With --tune, measures the convolutions of a model's step on the session's
// device, writes the file of --choices or the default file, and sets `options`
// to use it. The session must not have a program yet. Prints progress to stderr
// if that is a terminal, results to `text`. Returns {"seconds", "file",
// "choices", "candidates"}, or null if nothing was measured. Throws kUsage
// before measuring if the file cannot be written.
nlohmann::json TuneIfAsked(const CompileFlags& flags, const ir::Graph& forward,
                           codegen::ProgramKind kind, runtime::Session& session,
                           codegen::CompileOptions& options, FILE* text);

}  // namespace fusor::tools
