#include "codegen/compile_kernels.h"

#include <algorithm>
#include <optional>

#include "codegen/kernel_cache.h"
#include "codegen/kernel_fault.h"
#include "codegen/parallel_for.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::codegen {

namespace {

void CheckNames(const Plan& plan, const PlanOptions& options) {
  std::vector<std::string> names;
  for (const CompiledKernel& kernel : plan.kernels) {
    names.push_back(kernel.kernel.name);
  }
  for (const auto& [name, substitute] : options.substitutes) {
    const std::string nearest = NearestName(name, names);
    FUSOR_CHECK(std::find(names.begin(), names.end(), name) != names.end(),
                kUsage, "{}: program {} has no kernel {}{}", substitute.source,
                plan.name, name,
                nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
}

}  // namespace

void CompileKernels(Plan& plan, const TargetCompiler& compiler,
                    const PlanOptions& options) {
  // All that the machine code depends on.
  const std::string version = plan.target + "\n" + compiler.CodegenVersion();
  std::optional<KernelCache> store;
  if (!options.kernel_cache.empty()) store.emplace(options.kernel_cache);
  CheckNames(plan, options);
  ParallelFor(plan.kernels.size(), options.threads, [&](size_t i) {
    CompiledKernel& kernel = plan.kernels[i];
    const Kernel code = WithFault(kernel.kernel, options.fault);
    std::string key = version + "\n" + Print(code, true);
    const auto substitute = options.substitutes.find(kernel.kernel.name);
    const bool edited = substitute != options.substitutes.end();
    if (edited) key += "\n" + substitute->second.text;
    kernel.fingerprint = HashBytes(key);
    if (store.has_value()) {
      if (auto found = store->Find(key); found.has_value()) {
        kernel.binary = std::move(*found);
        return;
      }
    }
    kernel.binary =
        edited ? compiler.CompileArtifact(code, substitute->second.text,
                                          substitute->second.source)
               : compiler.CompileKernel(code);
    if (store.has_value()) store->Store(key, kernel.binary);
  });
  if (store.has_value()) store->Trim();
}

}  // namespace fusor::codegen
