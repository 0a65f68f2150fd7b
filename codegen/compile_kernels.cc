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

// Empty when the text was made of the kernel, else what is wrong.
std::string WhyNotOf(const Kernel& kernel, const std::string& text) {
  const std::string stamp = KernelStamp(kernel);
  const std::string words = stamp.substr(0, stamp.rfind(' ') + 1);
  const size_t at = text.find(words);
  if (at == std::string::npos) {
    return fmt::format("expected the comment \"{}\" that --dump-to writes",
                       stamp);
  }
  const std::string found = text.substr(at, stamp.size());
  if (found == stamp) return "";
  return fmt::format("it was made of {}, which is another than {}", found,
                     stamp);
}

// Those of options.substitutes that stand in for kernels of the plan.
std::set<std::string> FindSubstituted(const Plan& plan,
                                      const PlanOptions& options) {
  std::vector<std::string> names;
  for (const CompiledKernel& kernel : plan.kernels) {
    names.push_back(kernel.kernel.name);
  }
  std::set<std::string> found;
  for (const auto& [name, substitute] : options.substitutes) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
      const std::string nearest = NearestName(name, names);
      FUSOR_CHECK(!options.refuse_unused, kUsage,
                  "{}: program {} has no kernel {}{}", substitute.source,
                  plan.name, name,
                  nearest.empty() ? "" : "; did you mean " + nearest + "?");
      continue;
    }
    const std::string problem =
        WhyNotOf(plan.kernels[it - names.begin()].kernel, substitute.text);
    FUSOR_CHECK(problem.empty() || !options.refuse_unused, kUsage,
                "{}: not of kernel {} of program {}: {}", substitute.source,
                name, plan.name, problem);
    if (problem.empty()) found.insert(name);
  }
  return found;
}

}  // namespace

std::set<std::string> CompileKernels(Plan& plan, const TargetCompiler& compiler,
                                     const PlanOptions& options) {
  // All that the machine code depends on.
  const std::string version = plan.target + "\n" + compiler.CodegenVersion();
  std::optional<KernelCache> store;
  if (!options.kernel_cache.empty()) store.emplace(options.kernel_cache);
  const std::set<std::string> substituted = FindSubstituted(plan, options);
  ParallelFor(plan.kernels.size(), options.threads, [&](size_t i) {
    CompiledKernel& kernel = plan.kernels[i];
    const Kernel code = WithFault(kernel.kernel, options.fault);
    std::string key = version + "\n" + Print(code, true);
    const KernelSubstitute* edited =
        substituted.contains(kernel.kernel.name)
            ? &options.substitutes.at(kernel.kernel.name)
            : nullptr;
    if (edited != nullptr) key += "\n" + edited->text;
    kernel.fingerprint = HashBytes(key);
    if (store.has_value()) {
      if (auto found = store->Find(key); found.has_value()) {
        kernel.binary = std::move(*found);
        return;
      }
    }
    kernel.binary = edited != nullptr ? compiler.CompileArtifact(
                                            code, edited->text, edited->source)
                                      : compiler.CompileKernel(code);
    if (store.has_value()) store->Store(key, kernel.binary);
  });
  if (store.has_value()) store->Trim();
  return substituted;
}

}  // namespace fusor::codegen
