#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "runtime/backend/backend.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/bisect/reduce_case.h"

namespace fusor::inspect {

// Reduces a fusion to a small part whose kernel, compiled separately, still
// differs from the interpreter by more than its tolerance. Returns a graph of
// one fusion with its inputs, or the whole step if it is a library call or the
// separately compiled fusion passes. REQUIRES: CompareStep with the same step
// and inputs is not ok().
TestCase ReduceStep(const codegen::Plan& plan, const ir::Graph& graph,
                    size_t step, std::span<const ir::Tensor> inputs,
                    const codegen::TargetCompiler& compiler,
                    runtime::Device& device, const IsolateOptions& options);

// Files that reproduce a bug: module.txt, inputs.safetensors, manifest.json and
// command.sh, which runs `command` in the folder.
struct Reproducer {
  std::string folder;
  std::vector<std::string> command;  // "fusor", "opt", "module.txt", ...
  std::map<std::string, std::string> facts;  // written to the manifest
};

// Throws kUsage if the folder cannot be written.
void WriteReproducer(const Reproducer& reproducer, const TestCase& test_case);

// Joins the words, quoted for a POSIX shell.
std::string ShellCommand(const std::vector<std::string>& words);

}  // namespace fusor::inspect
