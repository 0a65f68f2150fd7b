#pragma once

#include <string>

#include "codegen/cpu/value_builder.h"
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
  // `target`: "cpu-avx512" or "cpu-avx2". If it is the target of this machine,
  // the host's own instructions are used beyond the target's.
  explicit LlvmCompiler(const std::string& target);

  // Returns an ELF object with one function per phase (kernel_emitter.h). It
  // depends only on the kernel's identity and facts().
  std::string CompileObject(const codegen::Kernel& kernel) const;

  // Returns the same code as text.
  LlvmText CompileText(const codegen::Kernel& kernel) const;

  // Compiles `text`, LLVM IR that a user edited from CompileText(kernel).ir, to
  // an object, without optimising it again. Throws kUsage with `source`, line
  // and column if it does not parse, and kUsage naming the function if one of
  // the kernel's functions is missing or has another type.
  std::string CompileEdited(const codegen::Kernel& kernel,
                            const std::string& text,
                            const std::string& source) const;

  const codegen::CodegenFingerprint& facts() const { return facts_; }

 private:
  std::string cpu_;
  std::string features_;  // "+avx512f,-amx-tile,..."
  VectorExtensions extensions_;
  codegen::CodegenFingerprint facts_;
};

}  // namespace fusor::cpu
