#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Receives one line: what differs from the request, and why. Any thread may
// call it.
using WarningHandler = std::function<void(const std::string&)>;

// One textual form of a kernel.
struct KernelArtifact {
  std::string suffix;  // file extension: ".ll", ".s"
  std::string text;
};

// Resources per thread of one phase of a GPU kernel.
struct EntryResources {
  std::string entry;  // CudaLaunch::entry
  int registers = 0;
  int stack_bytes = 0;  // local memory: spilled registers and indexed arrays
  bool operator==(const EntryResources&) const = default;
};

// Everything besides the kernel that its machine code depends on. Separate
// fields, so that the kernel cache can report which one changed.
struct CodegenFingerprint {
  std::string compiler;  // with version: "llvm 19.1.7"
  std::string device;    // instruction set: "znver4 8f3a54c09b21d7e6"
  std::string options;   // of the compiler, KEY=VALUE...
  std::string fusor;     // revision of fusor's code generator: "r1"

  std::string Text() const;  // all non-empty fields, in one line
};

// The compile-time part of a backend; needs no device. Implemented by the
// backend plug-ins; the compiler takes it by reference. All methods are
// thread-safe.
class TargetCompiler : public ir::TargetQueries {
 public:
  // Returns the machine code of all phases. Deterministic. Throws kInternal
  // with the kernel's name if code generation fails.
  virtual std::string CompileKernel(const Kernel& kernel) const = 0;

  // Returns the resources of each phase, given the result of CompileKernel;
  // empty for a CPU.
  virtual std::vector<EntryResources> Resources(const std::string&) const {
    return {};
  }

  // Returns the facts that are part of every cache key.
  virtual CodegenFingerprint Codegen() const = 0;
  std::string CodegenVersion() const { return Codegen().Text(); }

  // Sets implementation, workspace_bytes and plan of a call. Throws kGraph if
  // the library does not support it.
  virtual void PrepareCall(LibraryCall& call) const = 0;

  // Returns the intermediate forms of the kernel before machine code, for
  // dumps; may be empty. The first contains a comment with KernelStamp.
  // Deterministic.
  virtual std::vector<KernelArtifact> KernelArtifacts(
      const Kernel& kernel) const = 0;

  // Compiles an edited version of the kernel's first artifact to machine code
  // like CompileKernel's. Throws kUsage with `source`, line and column if the
  // text is malformed, or with what it lacks to replace the kernel.
  virtual std::string CompileArtifact(const Kernel& kernel,
                                      const std::string& text,
                                      const std::string& source) const = 0;

  // Returns the vendor library and its version, "oneDNN 2.6.3".
  virtual std::string LibraryVersion() const = 0;
};

}  // namespace fusor::codegen
