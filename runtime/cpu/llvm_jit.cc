#include "runtime/cpu/llvm_jit.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "codegen/cpu/kernel_emitter.h"
#include "ir/support/error.h"

namespace fusor::cpu {
namespace {

using llvm::orc::JITDylib;
using llvm::orc::LLJIT;

// Returns the value, or throws kInternal with LLVM's message.
template <typename T>
T Take(llvm::Expected<T> value, const std::string& what) {
  if (value) return static_cast<T&&>(*value);
  std::string message = llvm::toString(value.takeError());
  std::replace(message.begin(), message.end(), '\n', ' ');
  FUSOR_ASSERT(false, "{}: {}", what, message);
}

void Check(llvm::Error error, const std::string& what) {
  if (!error) return;
  std::string message = llvm::toString(std::move(error));
  std::replace(message.begin(), message.end(), '\n', ' ');
  FUSOR_ASSERT(false, "{}: {}", what, message);
}

// Defines what generated code may call: f64 functions, and memcpy and memset,
// which LLVM generates for copies.
void DefineLibrary(LLJIT& jit, JITDylib& library) {
  using llvm::orc::ExecutorAddr;
  using llvm::orc::ExecutorSymbolDef;
  const auto flags =
      llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable;
  llvm::orc::SymbolMap symbols;
  const auto add = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] =
        ExecutorSymbolDef(ExecutorAddr::fromPtr(function), flags);
  };
  using Unary = double (*)(double);
  using Binary = double (*)(double, double);
  add("exp", static_cast<Unary>(std::exp));
  add("log", static_cast<Unary>(std::log));
  add("tanh", static_cast<Unary>(std::tanh));
  add("sin", static_cast<Unary>(std::sin));
  add("cos", static_cast<Unary>(std::cos));
  add("erf", static_cast<Unary>(std::erf));
  add("pow", static_cast<Binary>(std::pow));
  add("fmod", static_cast<Binary>(std::fmod));
  add("memcpy", std::memcpy);
  add("memset", std::memset);
  Check(library.define(llvm::orc::absoluteSymbols(std::move(symbols))),
        "symbols of generated code");
}

// The process's linker. Never destroyed: kernels may outlive static objects.
struct Linker {
  Linker() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    jit = Take(llvm::orc::LLJITBuilder().create(), "LLVM linker");
    // Failures are also returned as errors, so print nothing.
    jit->getExecutionSession().setErrorReporter(
        [](llvm::Error error) { llvm::consumeError(std::move(error)); });
    library = &Take(jit->createJITDylib("library"), "LLVM linker");
    DefineLibrary(*jit, *library);
  }

  static Linker& Get() {
    static Linker& linker = *new Linker;
    return linker;
  }

  std::unique_ptr<LLJIT> jit;
  JITDylib* library = nullptr;
  std::atomic<int64_t> serial{0};
};

class JitObject : public LoadedObject {
 public:
  JitObject(const std::string& kernel, const std::string& bytes,
            size_t num_phases)
      : linker_(Linker::Get()),
        dylib_(&Take(linker_.jit->createJITDylib(
                         fmt::format("{}.{}", kernel, linker_.serial++)),
                     kernel)) {
    dylib_->addToLinkOrder(*linker_.library);
    try {
      Check(linker_.jit->addObjectFile(
                *dylib_, llvm::MemoryBuffer::getMemBufferCopy(bytes, kernel)),
            kernel);
      for (size_t k = 0; k < num_phases; ++k) {
        phases_.push_back(
            Take(linker_.jit->lookup(*dylib_, PhaseSymbol(k)), kernel)
                .toPtr<PhaseFunction>());
      }
    } catch (...) {
      Remove();
      throw;
    }
  }
  ~JitObject() override { Remove(); }

 private:
  void Remove() {
    llvm::consumeError(
        linker_.jit->getExecutionSession().removeJITDylib(*dylib_));
  }

  Linker& linker_;
  JITDylib* dylib_;
};

}  // namespace

LoadedObject::~LoadedObject() = default;

std::unique_ptr<LoadedObject> LoadObject(const std::string& kernel,
                                         const std::string& bytes,
                                         size_t num_phases) {
  return std::make_unique<JitObject>(kernel, bytes, num_phases);
}

}  // namespace fusor::cpu
