#include "tools/fusor/setup/session_setup.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/statistics.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/inspect/dump/dumper.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::tools {

namespace {

void Keep(const DumpFlags& flags, const passes::PassTrace& trace,
          const ir::Graph& before, const ir::Graph& after) {
  std::error_code error;
  std::string folder =
      (std::filesystem::temp_directory_path(error) / "fusor-failed-pass-XXXXXX")
          .string();
  if (error || mkdtemp(folder.data()) == nullptr) return;
  inspect::DumpOptions options;
  options.version = FUSOR_VERSION;
  options.command = flags.options.command;
  options.options = flags.options.options;
  try {
    inspect::Dumper dumper(options,
                           std::make_unique<inspect::FolderSink>(folder));
    dumper.Begin(before);
    dumper.Pass(trace, after);
  } catch (const Error&) {
    return;  // not writable; the pass's own error matters more
  }
  fmt::print(stderr, "fusor: graphs before and after pass {}: {}\n", trace.name,
             folder);
}

}  // namespace

codegen::CompileObserver KeepFailedPass(const DumpFlags& flags) {
  return {.failure = [flags](const passes::PassTrace& trace,
                             const ir::Graph& before, const ir::Graph& after) {
    Keep(flags, trace, before, after);
  }};
}

using nlohmann::json;

namespace {

// Parses "KERNEL:FILE" entries.
std::map<std::string, codegen::KernelSubstitute> ReadSubstitutes(
    const std::vector<std::string>& list) {
  std::map<std::string, codegen::KernelSubstitute> substitutes;
  for (const std::string& text : list) {
    const size_t colon = text.find(':');
    FUSOR_CHECK(colon != std::string::npos && colon > 0, kUsage,
                "--substitute-kernel {}: expected NAME:FILE", text);
    const std::string file = text.substr(colon + 1);
    std::vector<uint8_t> bytes;
    ReadFile(file, ErrorCode::kUsage, bytes);
    substitutes[text.substr(0, colon)] = {file, {bytes.begin(), bytes.end()}};
  }
  return substitutes;
}

// Returns 0 for a missing counter.
int64_t Counter(const codegen::CompileReport& report, const char* name) {
  const auto it = report.counters.find(name);
  return it == report.counters.end() ? 0 : it->second;
}

// Warns if the module filter matched nothing.
void CloseDumper(inspect::Dumper* dumper) {
  const std::vector<std::string> left_out = dumper->ModulesLeftOut();
  if (!left_out.empty()) {
    fmt::print(stderr,
               "fusor: module filter: matches no module, nothing was dumped; "
               "expected one of {}\n",
               Join(left_out, ", ", [](const auto& name) { return name; }));
  }
  delete dumper;
}

}  // namespace

std::shared_ptr<inspect::Dumper> OpenDumper(const DumpFlags& flags,
                                            const std::string& part) {
  inspect::DumpOptions options = flags.options;
  if (flags.to.empty()) {
    FUSOR_CHECK(options.pass.empty() && options.module.empty() &&
                    options.pipeline.empty() && options.formats.empty(),
                kUsage,
                "--dump-pass, --dump-module, --dump-pipeline and "
                "--dump-format: expected --dump-to DIR too");
    return nullptr;
  }
  FUSOR_CHECK(
      flags.to != "-" || !options.formats.contains(inspect::DumpFormat::kProto),
      kUsage, "--dump-format proto is binary: expected --dump-to DIR, got -");
  if (options.formats.empty()) options.formats = inspect::DumpOptions{}.formats;
  options.version = FUSOR_VERSION;
  std::unique_ptr<inspect::DumpSink> sink;
  if (flags.to == "-") {
    sink = std::make_unique<inspect::StreamSink>(
        std::cout, part.empty() ? "" : part + "/");
  } else {
    sink = std::make_unique<inspect::FolderSink>(
        part.empty() ? flags.to : flags.to + "/" + part);
  }
  return {new inspect::Dumper(options, std::move(sink)), CloseDumper};
}

namespace {

// Warns once, because all programs of a run share one cache.
codegen::CompileObserver WarnOfCache() {
  codegen::CompileObserver observer;
  observer.program = [](const codegen::CompiledProgram& program,
                        const codegen::TargetCompiler&) {
    static std::once_flag once;
    const std::string& failure = program.report.cache.failure;
    if (failure.empty()) return;
    std::call_once(once, [&] {
      Warn(
          fmt::format("kernel cache: {}; kernels are compiled in every run; "
                      "set FUSOR_CACHE_DIR to a writable folder",
                      failure));
    });
  };
  return observer;
}

}  // namespace

std::string KernelCacheFolder(const CompileFlags& flags) {
  const std::string folder = flags.cache ? CacheDirectory() : "";
  return folder.empty() ? "" : folder + "/kernels";
}

codegen::CompileOptions MakeCompileOptions(
    const CompileFlags& flags, const OptimizerFlags& optimizer,
    const std::shared_ptr<inspect::Dumper>& dumper) {
  codegen::CompileOptions options = {.passes = flags.passes};
  FUSOR_CHECK(options.passes.fusion || options.passes.norm_lowering <=
                                           passes::NormLowering::kKernels,
              kUsage,
              "--bn-lowering {}: expected separate or kernels with --fusion "
              "off",
              passes::NormLoweringName(options.passes.norm_lowering));
  options.passes.precision = MakePrecision(flags);
  if (!flags.choices.empty() && !flags.tune) {
    options.passes.choices = ir::ReadAutotuneResults(flags.choices);
  }
  options.substitutes = ReadSubstitutes(flags.substitutes);
  passes::CheckPassNames(options.passes);
  options.passes.optimizer = MakeOptimizer(optimizer);
  options.passes.loss_scale = MakeLossScale(flags, optimizer);
  options.kernel_cache = KernelCacheFolder(flags);
  if (!options.kernel_cache.empty() && flags.warns) {
    options.observers.push_back(WarnOfCache());
  }
  if (flags.verify) {
    options.verification = passes::Verification::kAll;
  } else if (flags.verify_each) {
    options.verification =
        std::max(options.verification, passes::Verification::kPasses);
  }
  if (dumper != nullptr) {
    options.observers.push_back(inspect::Dumper::Observe(dumper));
  } else if (flags.dump.to.empty()) {
    options.observers.push_back(KeepFailedPass(flags.dump));
  }
  return options;
}

runtime::LrScheduleOptions MakeSchedule(const OptimizerFlags& flags,
                                        int64_t batch, int64_t epochs,
                                        int64_t steps_per_epoch,
                                        int64_t total_steps) {
  using Kind = runtime::LrScheduleKind;
  runtime::LrScheduleOptions options = flags.schedule;
  const bool by_epoch = flags.by_epoch;
  FUSOR_CHECK(
      !by_epoch || options.warmup == 0, kUsage,
      "--warmup-steps: expected --warmup (epochs) with --lr-update epoch");
  const bool steps = options.kind == Kind::kStep;
  FUSOR_CHECK(
      (!steps && options.kind != Kind::kConstant) || options.first_cycle == 0,
      kUsage,
      "--lr-cycle-epochs: expected --lr-schedule linear, cosine or "
      "polynomial, got {}",
      steps ? "step" : "constant");
  if (flags.lr_images > 0) {
    options.base *=
        static_cast<double>(batch) / static_cast<double>(flags.lr_images);
  }
  options.steps_per_update = by_epoch ? steps_per_epoch : 1;
  options.total =
      by_epoch ? epochs : std::min(total_steps, epochs * steps_per_epoch);
  const int64_t per_epoch = by_epoch ? 1 : steps_per_epoch;
  if (options.warmup == 0) {
    options.warmup =
        std::llround(flags.warmup_epochs * static_cast<double>(per_epoch));
  }
  if (options.milestones.empty()) options.milestones = {30, 60, 80};
  for (int64_t& milestone : options.milestones) milestone *= per_epoch;
  options.first_cycle *= per_epoch;
  return options;
}

void CheckGraphSteps(const CompileFlags& flags) {
  const int64_t steps = flags.device.graph_steps;
  if (steps == 1) return;
  FUSOR_CHECK(flags.backend == "cuda", kUsage,
              "--cuda-graph-steps {}: expected backend cuda, got {}", steps,
              flags.backend);
  FUSOR_CHECK(flags.device.graph, kUsage,
              "--cuda-graph-steps {} and --cuda-graph off: expected one of "
              "them",
              steps);
}

std::unique_ptr<runtime::Session> OpenSession(
    const CompileFlags& flags, runtime::Communicator* communicator) {
  runtime::BackendOptions options = flags.device;
  options.warning = Warn;
  return std::make_unique<runtime::Session>(runtime::LoadBackend(flags.backend),
                                            options, communicator);
}

std::string KernelText(const codegen::Plan& plan) {
  std::string text;
  for (const codegen::CompiledKernel& kernel : plan.kernels) {
    text += codegen::Print(kernel.kernel) + "\n";
  }
  return text;
}

json StepJson(std::vector<double> step_ms) {
  if (step_ms.empty()) return json::object();
  const auto [low, high] = std::minmax_element(step_ms.begin(), step_ms.end());
  return {{"median", Median(step_ms)}, {"min", *low}, {"max", *high}};
}

json DataJson(const runtime::DataStats& stats, double seconds) {
  const double share = seconds > 0 ? stats.wait_seconds / seconds : 0;
  const runtime::ReadRate rate = runtime::ReadRateOf(stats, seconds);
  return {{"data_wait_share", share},
          {"input_bound", share > runtime::kInputBoundShare},
          {"read_megabytes_per_second", rate.megabytes},
          {"files_per_second", rate.files}};
}

namespace {

// Returns null without a cache.
json CacheJson(const codegen::CacheReport& report) {
  if (!report.used) return nullptr;
  json misses = json::array();
  for (const codegen::CacheMiss& miss : report.misses) {
    misses.push_back({{"changed", miss.changed},
                      {"reason", miss.reason},
                      {"kernels", miss.kernels}});
  }
  json out = {
      {"hits", report.hits}, {"misses", report.missed()}, {"reasons", misses}};
  if (!report.failure.empty()) out["failure"] = report.failure;
  return out;
}

json PassesJson(const codegen::CompileReport& report) {
  json passes = json::array();
  for (const passes::PassTrace& trace : report.passes) {
    passes.push_back({{"pipeline", trace.pipeline},
                      {"pass", trace.name},
                      {"changed", trace.changed},
                      {"ms", trace.ms},
                      {"nodes_before", trace.nodes_before},
                      {"nodes_after", trace.nodes_after}});
  }
  return passes;
}

}  // namespace

json ProgramJson(const runtime::Program& program) {
  return ProgramJson(program.graph(), program.plan(), program.report());
}

json ProgramJson(const ir::Graph& graph, const codegen::Plan& plan,
                 const codegen::CompileReport& report) {
  const models::ParameterCount count = models::CountParameters(graph);
  json compile = json::object();
  for (const auto& [phase, seconds] : report.seconds) compile[phase] = seconds;
  compile["total"] = report.total_seconds();
  json fusions = json::object();
  for (const char* kind :
       {"bn_relu", "bn_add_relu", "dual_bn_add_relu", "bn_relu_grad",
        "bn_add_relu_grad", "dual_bn_add_relu_grad"}) {
    fusions[kind] = Counter(report, kind);
  }
  fusions["by_kind"] = json::object();
  for (const inspect::KernelCount& kind : inspect::CountKernels(graph)) {
    fusions["by_kind"][kind.what] = kind.kernels;
  }
  fusions["total"] = report.fusions;
  json counters = report.counters;
  return {{"parameters", count.parameters},
          {"parameter_tensors", count.tensors},
          {"forward_macs", report.forward_macs},
          {"fusions", fusions},
          {"counters", counters},
          {"kernels", report.kernels},
          {"distinct_kernels", report.distinct_kernels},
          {"library_calls", report.library_calls},
          {"weight_repacks", Counter(report, "weight_repacks")},
          {"weight_copies", Counter(report, "weight_copies")},
          {"casts",
           {{"narrow", Counter(report, "casts_narrow")},
            {"wide", Counter(report, "casts_wide")}}},
          {"mixed_ops",
           {{"narrow", Counter(report, "allowed_16")},
            {"wide", Counter(report, "allowed_f32")}}},
          {"bytes_moved", report.bytes_moved},
          {"traffic_bytes", inspect::TrafficBytes(plan)},
          {"choices", ir::AutotuneHashText(plan.choices)},
          {"planned_peak_bytes", plan.peak_bytes},
          {"planned_lower_bound_bytes", plan.lower_bound_bytes},
          {"compile_seconds", compile},
          {"passes", PassesJson(report)},
          {"kernel_cache", CacheJson(report.cache)}};
}

namespace {

std::string MibText(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string ProgramSummary(const runtime::Program& program) {
  return ProgramSummary(program.plan(), program.report());
}

std::string ProgramSummary(const codegen::Plan& plan,
                           const codegen::CompileReport& r) {
  const auto counter = [&](const char* name) { return Counter(r, name); };
  std::string text = fmt::format(
      "compiled  {} nodes -> {} with gradients and update -> {} after {} "
      "fusions\n",
      r.nodes_forward, r.nodes_train, r.nodes_optimized, r.fusions);
  text += fmt::format(
      "patterns  {} BN-ReLU, {} BN-add-ReLU ({} with two BN), {} transposed "
      "activations, {} weight repacks per step\n",
      counter("bn_relu"), counter("bn_add_relu"), counter("dual_bn_add_relu"),
      counter("activation_copies"), counter("weight_repacks"));
  if (r.counters.contains("casts_narrow")) {
    text += fmt::format(
        "precision {} ops in 16 bit, {} faster in fp32; {} casts to 16 bit, {} "
        "to fp32; {} cached cast weights\n",
        counter("allowed_16"), counter("allowed_f32"), counter("casts_narrow"),
        counter("casts_wide"), counter("weight_copies"));
  }
  if (plan.choices != 0) {
    text +=
        fmt::format("autotune  {} for {} of {} convolutions",
                    ir::AutotuneHashText(plan.choices),
                    counter("chosen_convolutions"), counter("convolutions"));
    if (counter("chosen_forms") > 0) {
      text +=
          fmt::format(" and for {} rewritten ones", counter("chosen_forms"));
    }
    text += "\n";
  }
  text += fmt::format(
      "step      {} kernels ({} distinct), {} library calls, {} of "
      "operands and results, {} saved by fusion\n",
      r.kernels, r.distinct_kernels, r.library_calls, MibText(r.bytes_moved),
      MibText(r.bytes_saved));
  if (counter("conv_statistics") > 0) {
    text += fmt::format(
        "norms     convolutions compute statistics of {} and partial gradients "
        "of {}, and apply {}, {} with a residual add\n",
        counter("conv_statistics"), counter("conv_norm_grad"),
        counter("conv_norm_prologue"), counter("conv_norm_join"));
  }
  text +=
      fmt::format("memory    {} planned for activations; lower bound {}\n",
                  MibText(plan.peak_bytes), MibText(plan.lower_bound_bytes));
  text += fmt::format("compile   {:.2f} s:", r.total_seconds());
  for (const auto& [phase, seconds] : r.seconds) {
    text += fmt::format(" {} {:.2f}", phase, seconds);
  }
  text += "\n";
  if (r.cache.used) text += fmt::format("cache     {}\n", r.cache.Text());
  return text;
}

FILE* TextStream(const std::vector<std::string>& outputs) {
  const auto to_stdout = std::count(outputs.begin(), outputs.end(), "-");
  FUSOR_CHECK(to_stdout <= 1, kUsage,
              "expected at most one output on stdout (-), got {}", to_stdout);
  return to_stdout == 1 ? stderr : stdout;
}

void CheckOutput(const std::string& flag, const std::string& path) {
  if (path.empty() || path == "-") return;
  try {
    CheckWritable(path, ErrorCode::kUsage);
  } catch (const Error& e) {
    ThrowError(e.code(), fmt::format("{}: {}", flag, e.what()));
  }
}

void MakeFolder(const std::string& flag, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  FUSOR_CHECK(!error, kUsage, "{}: cannot create folder {}: {}", flag, path,
              error.message());
}

void WriteText(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  WriteFileAtomically(path, text, ErrorCode::kUsage);
}

void WriteJson(const std::string& path, const json& value) {
  if (!path.empty()) WriteText(path, value.dump(2) + "\n");
}

}  // namespace fusor::tools
