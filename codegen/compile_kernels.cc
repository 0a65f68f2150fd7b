#include "codegen/compile_kernels.h"

#include <optional>

#include "codegen/kernel_cache.h"
#include "codegen/kernel_fault.h"
#include "codegen/parallel_for.h"
#include "ir/support/hash.h"

namespace fusor::codegen {

void CompileKernels(Plan& plan, const TargetCompiler& compiler,
                    const PlanOptions& options) {
  // All that the machine code depends on.
  const std::string version = plan.target + "\n" + compiler.CodegenVersion();
  std::optional<KernelCache> store;
  if (!options.kernel_cache.empty()) store.emplace(options.kernel_cache);
  ParallelFor(plan.kernels.size(), options.threads, [&](size_t i) {
    CompiledKernel& kernel = plan.kernels[i];
    const Kernel code = WithFault(kernel.kernel, options.fault);
    const std::string key = version + "\n" + Print(code, true);
    kernel.fingerprint = HashBytes(key);
    if (store.has_value()) {
      if (auto found = store->Find(key); found.has_value()) {
        kernel.binary = std::move(*found);
        return;
      }
    }
    kernel.binary = compiler.CompileKernel(code);
    if (store.has_value()) store->Store(key, kernel.binary);
  });
  if (store.has_value()) store->Trim();
}

}  // namespace fusor::codegen
