#include "codegen/plan/plan.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/program.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/step_profile.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/inspect/report/gpu_model.h"
#include "tools/inspect/report/plan_report.h"
#include "tools/inspect/report/plan_view.h"

namespace fusor::tools {
namespace {

struct PlanFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  PlannedRanks ranks;
  bool profile = false;
  int64_t top = 15;
  std::string trace;
  std::string roofline;
  std::string html;
  std::string json;
};

// A compiled step. It can run if it is for one rank and this machine. A step
// for several ranks or another target can only be inspected.
struct Planned {
  std::unique_ptr<runtime::Session> session;           // for this machine
  std::unique_ptr<codegen::TargetCompiler> elsewhere;  // for --target
  runtime::Program* program = nullptr;                 // of the session
  codegen::CompiledProgram apart{};                    // without a session

  const codegen::TargetCompiler& compiler() const {
    return elsewhere != nullptr ? *elsewhere : session->compiler();
  }
  const codegen::Plan& plan() const {
    return program == nullptr ? apart.plan : program->plan();
  }
  const ir::Graph& graph() const {
    return program == nullptr ? *apart.graph : program->graph();
  }
};

Planned Open(const PlanFlags& flags) {
  Planned planned;
  if (flags.compile.target.empty()) {
    planned.session = OpenSession(flags.compile);
    return planned;
  }
  FUSOR_CHECK(!flags.profile && !flags.compile.tune, kUsage,
              "{} measures this machine: expected no --target, got {}",
              flags.profile ? "--profile" : "--tune", flags.compile.target);
  planned.elsewhere = OpenCompiler(flags.compile);
  return planned;
}

void AddProgram(const PlanFlags& flags, std::unique_ptr<ir::Graph> forward,
                codegen::CompileOptions& options, Planned& planned) {
  if (flags.ranks.world_size == 1 && planned.session != nullptr) {
    planned.program = &planned.session->Compile(
        std::move(forward), codegen::ProgramKind::kTrain, options);
    return;
  }
  FUSOR_CHECK(!flags.profile, kUsage,
              "--profile: expected one rank, got --world-size {}",
              flags.ranks.world_size);
  // The GPU time model reads registers from the machine code.
  options.plan_only = !planned.compiler().target().simt;
  planned.apart =
      codegen::Compile(std::move(forward), codegen::ProgramKind::kTrain,
                       planned.compiler(), options);
}

std::string Subject(const PlanFlags& flags) {
  std::string text =
      fmt::format("{}, batch {}", models::CanonicalArch(flags.model.arch),
                  flags.model.options.batch);
  const int64_t ranks = flags.ranks.world_size;
  if (ranks > 1) text += fmt::format(" per rank, one of {} ranks", ranks);
  const std::string& target = flags.compile.target;
  if (!target.empty()) text += ", estimated for " + target;
  return text;
}

void RunPlan(const PlanFlags& flags) {
  FILE* text = TextStream({flags.trace, flags.roofline, flags.html, flags.json,
                           flags.compile.dump.to});
  CheckOutput("--trace", flags.trace);
  CheckOutput("--roofline", flags.roofline);
  CheckOutput("--html", flags.html);
  CheckOutput("--json", flags.json);
  const auto dumper = OpenDumper(flags.compile.dump);
  models::ModelOptions model_options = MakeModelOptions(flags.model, 0);
  model_options.norm_ranks =
      NormRanks(flags.ranks.flags, flags.ranks.world_size);
  models::Model model = models::BuildModel(
      flags.model.arch, models::Phase::kTrain, model_options);
  Planned planned = Open(flags);
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer, dumper);
  SetRankOptions(flags.ranks, options.passes);
  nlohmann::json tuning;
  if (planned.session != nullptr) {
    tuning =
        TuneIfAsked(flags.compile, *model.graph, codegen::ProgramKind::kTrain,
                    *planned.session, options, text);
  }
  AddProgram(flags, std::move(model.graph), options, planned);
  std::vector<double> measured;
  if (flags.profile) {
    measured =
        ProfileSynthetic(flags.model, *planned.session, *planned.program);
  }
  const codegen::Plan& plan = planned.plan();
  const codegen::TargetCompiler& compiler = planned.compiler();
  const ir::Target& target = compiler.target();
  const inspect::PlanReport report =
      inspect::ReportPlan(plan, planned.graph(), compiler, measured,
                          options.passes.collective_cost);
  const std::string subject = Subject(flags);
  fmt::print(text, "{}\n{}", subject,
             inspect::PlanReportText(plan, report, target,
                                     static_cast<size_t>(flags.top)));
  std::optional<inspect::GpuModel> launches;
  if (target.simt) {
    launches = inspect::ModelGpuStep(plan, compiler);
    fmt::print(text, "{}",
               inspect::GpuModelText(*launches, flags.model.options.batch));
  }
  WriteJson(flags.trace, inspect::ChromeTrace(plan, report));
  WriteText(flags.roofline, inspect::RooflineSvg(report, target, subject));
  if (!flags.html.empty()) {
    WriteText(flags.html, inspect::PlanPage(plan, planned.graph(), report,
                                            target, subject));
  }
  nlohmann::json out = inspect::PlanReportJson(plan, report, target);
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.options.batch;
  out["ranks"] = flags.ranks.world_size;
  if (!tuning.is_null()) out["tuning"] = tuning;
  if (launches.has_value()) {
    out["gpu_model"] =
        inspect::GpuModelJson(*launches, plan, flags.model.options.batch);
  }
  WriteJson(flags.json, out);
}

}  // namespace

void AddPlan(CLI::App& app, Run* run) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "Explain where a training step's time and memory go");
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddPlannedRankFlags(*command, flags->ranks);
  AddTuneFlag(*command, flags->compile);
  AddTargetFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->add_flag("--profile", flags->profile,
                    "Also measure each kernel on synthetic data");
  command->add_option("--top", flags->top, "Number of longest steps to list")
      ->capture_default_str()
      ->check(WholeNumber(0));
  command
      ->add_option("--trace", flags->trace,
                   "Write the step as a Chrome trace (Perfetto) to FILE")
      ->type_name("FILE");
  command
      ->add_option("--roofline", flags->roofline,
                   "Write a roofline chart to FILE (SVG)")
      ->type_name("FILE");
  command
      ->add_option("--html", flags->html,
                   "Write a self-contained HTML page to FILE")
      ->type_name("FILE");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunPlan(*flags); }; });
}

}  // namespace fusor::tools
