#include "codegen/cpu/llvm_compiler.h"

#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PassManager.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "codegen/cpu/kernel_emitter.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"
#include "ir/target/target.h"

namespace fusor::cpu {
namespace {

using codegen::Kernel;

// Increment when the same kernel IR gives different machine code.
constexpr int kRevision = 5;

// For some CPU models LLVM would split 512-bit vectors, to keep clocks high.
constexpr char kVectorWidth[] = "512";
// Compute threads flush subnormals.
constexpr char kDenormals[] = "preserve-sign,preserve-sign";

void InitializeLlvm() {
  static const bool once = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  static_cast<void>(once);
}

std::unique_ptr<llvm::TargetMachine> MakeMachine(const std::string& cpu,
                                                 const std::string& features) {
  InitializeLlvm();
  const std::string triple = llvm::sys::getProcessTriple();
  std::string problem;
  const llvm::Target* target =
      llvm::TargetRegistry::lookupTarget(triple, problem);
  FUSOR_ASSERT(target != nullptr, "LLVM target {}: {}", triple, problem);
  llvm::TargetOptions options;
  options.NoTrappingFPMath = true;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      triple, cpu, features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
      llvm::CodeGenOptLevel::Default));
  FUSOR_ASSERT(machine != nullptr, "LLVM makes no code for {} {}", triple, cpu);
  return machine;
}

// A machine of the process for this CPU, exclusive until destroyed. Making one
// takes as long as a small kernel.
class BorrowedMachine {
 public:
  BorrowedMachine(const std::string& cpu, const std::string& features)
      : key_(cpu + " " + features) {
    Pool& pool = Pool::Get();
    {
      const std::scoped_lock lock(pool.mutex);
      auto& idle = pool.idle[key_];
      if (!idle.empty()) {
        machine_ = std::move(idle.back());
        idle.pop_back();
        return;
      }
    }
    machine_ = MakeMachine(cpu, features);
  }
  ~BorrowedMachine() {
    Pool& pool = Pool::Get();
    const std::scoped_lock lock(pool.mutex);
    pool.idle[key_].push_back(std::move(machine_));
  }
  BorrowedMachine(const BorrowedMachine&) = delete;
  BorrowedMachine& operator=(const BorrowedMachine&) = delete;

  llvm::TargetMachine& operator*() const { return *machine_; }
  llvm::TargetMachine* operator->() const { return machine_.get(); }

 private:
  // Never destroyed: kernels may be compiled until the process ends.
  struct Pool {
    static Pool& Get() {
      static Pool& pool = *new Pool;
      return pool;
    }
    std::mutex mutex;
    std::map<std::string, std::vector<std::unique_ptr<llvm::TargetMachine>>>
        idle;
  };

  std::string key_;
  std::unique_ptr<llvm::TargetMachine> machine_;
};

// Promotes stack slots to SSA values and cleans up. Kernels are already
// vectorised and hoisted.
void Optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(
      llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::SimplifyCFGPass());
  for (llvm::Function& function : module) {
    if (!function.isDeclaration()) passes.run(function, functions);
  }
}

std::string WriteModule(llvm::Module& module, llvm::TargetMachine& machine,
                        llvm::CodeGenFileType type) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  const bool rejected =
      machine.addPassesToEmitFile(passes, stream, nullptr, type);
  FUSOR_ASSERT(!rejected, "LLVM cannot write this kind of file");
  passes.run(module);
  return {bytes.begin(), bytes.end()};
}

// The module of a kernel and its owners.
struct Compilation {
  Compilation(const Kernel& kernel, const std::string& cpu,
              const std::string& features, const VectorExtensions& extensions)
      : machine(cpu, features), module("kernel", context) {
    module.setTargetTriple(machine->getTargetTriple().str());
    module.setDataLayout(machine->createDataLayout());
    EmitKernel(kernel, extensions, module);
    for (llvm::Function& function : module) {
      if (function.isDeclaration()) continue;
      function.addFnAttr("target-cpu", cpu);
      function.addFnAttr("target-features", features);
      function.addFnAttr("prefer-vector-width", kVectorWidth);
      function.addFnAttr("denormal-fp-math", kDenormals);
    }
    Optimize(module, *machine);
  }

  std::string Write(llvm::CodeGenFileType type) {
    return WriteModule(module, *machine, type);
  }

  BorrowedMachine machine;
  llvm::LLVMContext context;
  llvm::Module module;
};

std::string TypeText(const llvm::FunctionType& type) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  type.print(stream);
  return text;
}

// Throws kUsage unless the module defines each phase's function with its type.
void CheckFunctions(llvm::Module& module, size_t phases,
                    const std::string& source) {
  llvm::Type* index = llvm::Type::getInt64Ty(module.getContext());
  const llvm::FunctionType* type = llvm::FunctionType::get(
      llvm::Type::getVoidTy(module.getContext()),
      {llvm::PointerType::getUnqual(module.getContext()), index, index}, false);
  for (size_t k = 0; k < phases; ++k) {
    const std::string name = PhaseSymbol(k);
    const llvm::Function* function = module.getFunction(name);
    FUSOR_CHECK(function != nullptr && !function->isDeclaration(), kUsage,
                "{}: expected function {}, got none", source, name);
    FUSOR_CHECK(function->getFunctionType() == type, kUsage,
                "{}: function {}: expected {}, got {}", source, name,
                TypeText(*type), TypeText(*function->getFunctionType()));
  }
}

// LLVM before 22 swaps the operands of a masked AVX512-FP16 comparison without
// its condition (llvm/llvm-project issue 159723). AVX10 includes these
// instructions.
bool IsMiscompiled(llvm::StringRef feature) {
  return LLVM_VERSION_MAJOR < 22 &&
         (feature == "avx512fp16" || feature.starts_with("avx10"));
}

// Returns the host's features that LLVM compiles correctly, e.g.
// "+avx,+avx2,-avx512fp16".
std::string HostFeatures() {
  std::vector<std::string> features;
  for (const auto& [name, available] : llvm::sys::getHostCPUFeatures()) {
    const bool use = available && !IsMiscompiled(name);
    features.push_back((use ? "+" : "-") + name.str());
  }
  std::sort(features.begin(), features.end());
  return Join(features, ",", [](const std::string& f) { return f; });
}

}  // namespace

LlvmCompiler::LlvmCompiler(const std::string& target) {
  if (ir::DefaultCpuTarget().name == target) {
    cpu_ = llvm::sys::getHostCPUName().str();
    features_ = HostFeatures();
    const auto has = [list = features_ + ","](const char* feature) {
      return list.find(fmt::format("+{},", feature)) != std::string::npos;
    };
    extensions_ = {.avx512 = has("avx512f") && has("avx512vl"),
                   .avx512_bf16 = has("avx512bf16")};
  } else {
    const bool avx512 = target == "cpu-avx512";
    cpu_ = avx512 ? "x86-64-v4" : "x86-64-v3";
    extensions_ = {.avx512 = avx512};
  }
  facts_.compiler = "llvm " LLVM_VERSION_STRING;
  facts_.device = fmt::format("{} {:016x}", cpu_, HashBytes(features_));
  facts_.options =
      fmt::format("vector-width={} denormals={}", kVectorWidth, kDenormals);
  facts_.fusor = fmt::format("r{}", kRevision);
}

std::string LlvmCompiler::CompileObject(const Kernel& kernel) const {
  return Compilation(kernel, cpu_, features_, extensions_)
      .Write(llvm::CodeGenFileType::ObjectFile);
}

std::string LlvmCompiler::CompileEdited(const Kernel& kernel,
                                        const std::string& text,
                                        const std::string& source) const {
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const std::unique_ptr<llvm::Module> module =
      llvm::parseAssemblyString(text, problem, context);
  FUSOR_CHECK(module != nullptr, kUsage, "{}:{}:{}: {}", source,
              problem.getLineNo(), problem.getColumnNo() + 1,
              problem.getMessage().str());
  CheckFunctions(*module, kernel.phases.size(), source);
  const BorrowedMachine machine(cpu_, features_);
  module->setTargetTriple(machine->getTargetTriple().str());
  module->setDataLayout(machine->createDataLayout());
  return WriteModule(*module, *machine, llvm::CodeGenFileType::ObjectFile);
}

LlvmText LlvmCompiler::CompileText(const Kernel& kernel) const {
  Compilation compilation(kernel, cpu_, features_, extensions_);
  LlvmText text;
  llvm::raw_string_ostream stream(text.ir);
  stream << "; " << codegen::KernelStamp(kernel) << "\n";
  compilation.module.print(stream, nullptr);
  text.assembly = compilation.Write(llvm::CodeGenFileType::AssemblyFile);
  return text;
}

}  // namespace fusor::cpu
