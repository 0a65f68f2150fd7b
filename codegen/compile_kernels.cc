#include "codegen/compile_kernels.h"

#include <optional>

#include "codegen/kernel_cache.h"
#include "codegen/parallel_for.h"
#include "ir/support/hash.h"

namespace fusor::codegen {

void CompileKernels(Plan& plan, const TargetCompiler& compiler, int threads,
                    const std::string& cache) {
  // All that the machine code depends on.
  const std::string version = plan.target + "\n" + compiler.CodegenVersion();
  std::optional<KernelCache> store;
  if (!cache.empty()) store.emplace(cache);
  ParallelFor(plan.kernels.size(), threads, [&](size_t i) {
    CompiledKernel& kernel = plan.kernels[i];
    const std::string key = version + "\n" + Print(kernel.kernel, true);
    kernel.fingerprint = HashBytes(key);
    if (store.has_value()) {
      if (auto found = store->Find(key); found.has_value()) {
        kernel.binary = std::move(*found);
        return;
      }
    }
    kernel.binary = compiler.CompileKernel(kernel.kernel);
    if (store.has_value()) store->Store(key, kernel.binary);
  });
  if (store.has_value()) store->Trim();
}

}  // namespace fusor::codegen
