#pragma once

#include <string>

#include "codegen/kernel/kernel_ir.h"
#include "codegen/target_compiler.h"

namespace fusor::cpu {

struct LlvmText {
  std::string ir;  // after optimisation
  std::string assembly;
};

// Kernels to machine code for one instruction set. Thread-safe.
class LlvmCompiler {
 public:
  // `target`: "cpu-avx512" or "cpu-avx2". When it is what this machine has, the
  // host's own instructions are used beyond the target's.
  explicit LlvmCompiler(const std::string& target);

  // An ELF object with one function a phase (kernel_emitter.h). Depends only on
  // the kernel's identity and facts().
  std::string CompileObject(const codegen::Kernel& kernel) const;

  // The same code as text.
  LlvmText CompileText(const codegen::Kernel& kernel) const;

  // The object of LLVM IR that somebody made of CompileText(kernel).ir, which
  // is not optimised again. Throws kUsage: `source`, line and column where it
  // does not parse, or what it lacks of the kernel's functions.
  std::string CompileEdited(const codegen::Kernel& kernel,
                            const std::string& text,
                            const std::string& source) const;

  const codegen::CodegenFingerprint& facts() const { return facts_; }

 private:
  std::string cpu_;
  std::string features_;  // "+avx512f,-amx-tile,..."
  bool native_bf16_ = false;
  codegen::CodegenFingerprint facts_;
};

}  // namespace fusor::cpu
