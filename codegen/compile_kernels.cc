#include "codegen/compile_kernels.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "codegen/kernel_cache.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/parallel_for.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"

namespace fusor::codegen {

namespace {

// Returns why the text is not an artifact of the kernel; empty if it is.
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
  return fmt::format("it was generated from {}, not from {}", found, stamp);
}

// Returns the names of the plan's kernels that options.substitutes replaces.
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
      FUSOR_CHECK(!options.reject_unused, kUsage,
                  "{}: program {} has no kernel {}{}", substitute.source,
                  plan.name, name,
                  nearest.empty() ? "" : "; did you mean " + nearest + "?");
      continue;
    }
    const std::string problem =
        WhyNotOf(plan.kernels[it - names.begin()].kernel, substitute.text);
    FUSOR_CHECK(problem.empty() || !options.reject_unused, kUsage,
                "{}: does not belong to kernel {} of program {}: {}",
                substitute.source, name, plan.name, problem);
    if (problem.empty()) found.insert(name);
  }
  return found;
}

// Returns the cache key: everything that the machine code depends on.
std::string KeyOf(const CodegenFingerprint& facts, const std::string& target,
                  const std::string& source) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", target, facts.compiler,
                     facts.device, facts.options, facts.fusor, source);
}

// Returns the compiler's facts and, in options, the hash of the autotune
// results, which are specific to one machine.
CodegenFingerprint MetricsOf(const TargetCompiler& compiler, const Plan& plan) {
  CodegenFingerprint facts = compiler.Codegen();
  if (plan.choices != 0) {
    facts.options += " choices=" + ir::AutotuneHashText(plan.choices);
  }
  return facts;
}

// Returns "images=u8[2,224,224,3] labels=i32[2]".
std::string InputsOf(const Plan& plan) {
  std::string text;
  for (const PlanInput& input : plan.inputs) {
    const ir::TensorType& type = plan.buffers[input.buffer].type;
    if (input.role != ir::InputRole::kData || type.rank() == 0) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", input.name,
                        ir::ToString(type));
  }
  return text;
}

}  // namespace

KernelsReport CompileKernels(Plan& plan, const TargetCompiler& compiler,
                             const PlanOptions& options) {
  const CodegenFingerprint facts = MetricsOf(compiler, plan);
  std::optional<KernelCache> store;
  if (!options.kernel_cache.empty()) store.emplace(options.kernel_cache);
  const std::string inputs = InputsOf(plan);
  KernelsReport report;
  report.substituted = FindSubstituted(plan, options);
  std::vector<std::optional<KernelOrigin>> missed(plan.kernels.size());
  std::vector<std::string> failures(plan.kernels.size());
  // Opened at the first miss: a concurrent process that compiles the same
  // kernels may add them to the log before this one is done.
  std::optional<CacheLog> log;
  std::once_flag log_opened;
  ParallelFor(plan.kernels.size(), options.threads, [&](size_t i) {
    CompiledKernel& kernel = plan.kernels[i];
    Kernel code = kernel.kernel;
    if (options.alter_kernel) options.alter_kernel(code);
    Verify(code);
    std::string source = Print(code, true);
    const KernelSubstitute* edited =
        report.substituted.contains(kernel.kernel.name)
            ? &options.substitutes.at(kernel.kernel.name)
            : nullptr;
    if (edited != nullptr) source += "\n" + edited->text;
    const std::string key = KeyOf(facts, plan.target, source);
    kernel.fingerprint = HashBytes(key);
    if (store.has_value()) {
      if (auto found = store->Find(key); found.has_value()) {
        kernel.binary = std::move(*found);
        return;
      }
      std::call_once(log_opened, [&] { log.emplace(options.kernel_cache); });
    }
    kernel.binary = edited != nullptr ? compiler.CompileArtifact(
                                            code, edited->text, edited->source)
                                      : compiler.CompileKernel(code);
    if (!store.has_value()) return;
    failures[i] = store->Store(key, kernel.binary);
    missed[i] = {plan.name + "/" + kernel.kernel.name,
                 HashBytes(source),
                 plan.target,
                 facts,
                 options.settings,
                 inputs};
    SetSourceParts(source, *missed[i]);
  });
  if (!store.has_value()) return report;
  std::vector<KernelOrigin> origins;
  for (auto& origin : missed) {
    if (origin.has_value()) origins.push_back(std::move(*origin));
  }
  report.cache.used = true;
  for (const std::string& failure : failures) {
    if (report.cache.failure.empty()) report.cache.failure = failure;
  }
  report.cache.hits =
      static_cast<int64_t>(plan.kernels.size() - origins.size());
  if (origins.empty()) return report;
  for (const KernelOrigin& origin : origins) {
    report.cache.Add(log->Explain(origin));
  }
  log->Append(origins);
  store->Trim();
  return report;
}

}  // namespace fusor::codegen
