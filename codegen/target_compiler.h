#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Receives one line that names what is done differently from what was asked
// for, and why. Any thread may call it.
using WarningHandler = std::function<void(const std::string&)>;

// One form of a kernel, as text.
struct KernelArtifact {
  std::string suffix;  // of a file: ".ll", ".s"
  std::string text;
};

// What a phase of a GPU's kernel takes of each thread.
struct EntryResources {
  std::string entry;  // CudaLaunch::entry
  int registers = 0;
  int stack_bytes = 0;  // local memory: spilled registers and indexed arrays
  bool operator==(const EntryResources&) const = default;
};

// All that machine code depends on besides the kernel, part by part, so that
// the kernel cache can say which part changed.
struct CodegenFingerprint {
  std::string compiler;  // and its version: "llvm 19.1.7"
  std::string device;    // instructions it may use: "znver4 8f3a54c09b21d7e6"
  std::string options;   // given to the compiler, KEY=VALUE..
  std::string fusor;     // revision of fusor's own part: "r1"

  std::string Text() const;  // all of it, in a line
};

// What a backend knows at compile time, without a device. Implemented by the
// backend plug-ins; the compiler takes it by reference. All methods may be
// called from several threads at once.
class TargetCompiler : public ir::TargetQueries {
 public:
  // Machine code of all phases. Deterministic; throws kInternal with the
  // kernel's name when code generation fails.
  virtual std::string CompileKernel(const Kernel& kernel) const = 0;

  // Of each phase of a kernel, by CompileKernel's bytes; empty of a CPU's.
  virtual std::vector<EntryResources> Resources(const std::string&) const {
    return {};
  }

  // Part of every cache key.
  virtual CodegenFingerprint Codegen() const = 0;
  std::string CodegenVersion() const { return Codegen().Text(); }

  // Fills in implementation, workspace_bytes and plan of a call. Throws kGraph
  // when the library cannot do it.
  virtual void PrepareCall(LibraryCall& call) const = 0;

  // The forms that the kernel takes on its way to CompileKernel's bytes, for
  // dumps; may be empty. The first has a comment with KernelStamp.
  // Deterministic.
  virtual std::vector<KernelArtifact> KernelArtifacts(
      const Kernel& kernel) const = 0;

  // Machine code like CompileKernel's, of text that somebody made of the first
  // of the kernel's artifacts. `source` names the text in errors: throws kUsage
  // with line and column where it is malformed, or says what it lacks to stand
  // for the kernel.
  virtual std::string CompileArtifact(const Kernel& kernel,
                                      const std::string& text,
                                      const std::string& source) const = 0;

  // The vendor library and its version, "oneDNN 2.6.3": for manifests.
  virtual std::string LibraryVersion() const = 0;
};

}  // namespace fusor::codegen
