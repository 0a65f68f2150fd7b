#pragma once

#include <memory>
#include <string>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/graph.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// Reads a module, IR text or protobuf bytes, from a file or, for "-", stdin.
// Throws kUsage where it cannot be read, kGraph with the place in the text
// where it is none.
std::unique_ptr<ir::Graph> ReadModule(const std::string& path);

// A module with output "loss" that has not been differentiated is to be.
codegen::ProgramKind KindOf(const ir::Graph& graph);

// The compiler of --backend for --target, without a device.
std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags);

}  // namespace fusor::tools
