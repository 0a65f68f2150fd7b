#pragma once

// A program file stores a compiled training step. Another machine of the same
// kind runs it without passes, planning or library choices:
//
//   "fusor step 2\n", size of the file and of the header (64 bits each, little
//   endian), the header, each program's graph and plan, CRC-32C of all before
//
// The JSON header holds what the step was compiled by and for, the compile
// options, the state (names, types, layouts, initialisers), and each program's
// inputs and outputs. A graph is text (ir/io/printer.h). A plan is the output
// of codegen::SerializePlan, including kernel IR and library plans.
//
// Files are not trusted. The checksum detects accidental damage, not forgery.
// Files therefore hold no machine code, and readers ignore any: kernels are
// verified and compiled from their IR. Only machine code in the user's own
// kernel cache is reused (codegen/kernel_cache.h).

#include <string>
#include <string_view>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::codegen {
struct CompiledProgram;
enum class ProgramKind;
}  // namespace fusor::codegen

namespace fusor::runtime {

struct StepProgram {
  codegen::ProgramKind kind{};
  std::string graph;  // after all passes
  std::string plan;
  // Counters of CompileReport as JSON, without times, passes or decisions.
  std::string report;
};

// Properties that must be equal for a program file and the machine that runs
// it.
struct ProgramOrigin {
  std::string version;  // of fusor
  std::string build;    // runtime::BuildId of libfusor
  std::string target;   // "cpu-avx512", "nvidia-h200"
  std::string device;   // codegen::CodegenFingerprint::device
  std::string library;  // "oneDNN 2.6.3"
  int threads = 0;      // threads of the target
};

struct ProgramFile {
  ProgramOrigin origin;
  std::string backend;  // plug-in that runs it
  int world_size = 1;   // ranks that train together
  // Options of the command line that decided what was compiled.
  std::vector<std::string> options;
  // Text of the forward graph; empty for a built-in model.
  std::string module{};
  // The first program fixes the state layout.
  std::vector<StepProgram> programs;
};

ProgramOrigin OriginHere(const std::string& version,
                         const codegen::TargetCompiler& compiler);

// Returns why a step compiled for `file` cannot run on a machine with `here`,
// with the first property that differs and both values; empty if it can run.
// Ignores the number of threads, which the caller chooses.
std::string Mismatch(const ProgramOrigin& file, const ProgramOrigin& here);

StepProgram PackProgram(codegen::ProgramKind kind,
                        const codegen::CompiledProgram& program);
// Restores a program and compiles its kernels. `source` names the file in
// errors; `kernel_cache` is as in codegen::CompileOptions. Throws kGraph.
codegen::CompiledProgram UnpackProgram(const StepProgram& program,
                                       const std::string& source,
                                       const codegen::TargetCompiler& compiler,
                                       const std::string& kernel_cache);

// Writes atomically: a failure leaves no partial file. Throws kUsage with the
// system's error message.
void WriteProgramFile(const std::string& path, const ProgramFile& file);

// Returns whether the file begins as a program file of any version.
bool IsProgramFile(const std::string& path);

// Throws kUsage if the file cannot be read. Throws kGraph, with a message of
// one line, if it is not a program file, has another format version, or is
// truncated or corrupt.
ProgramFile ReadProgramFile(const std::string& path);
// Reads the bytes of a program file; `path` names it in errors. Throws kGraph.
ProgramFile ParseProgramFile(const std::string& path, std::string_view bytes);

}  // namespace fusor::runtime
