#include "codegen/plan.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "codegen/report/chrome_trace.h"
#include "codegen/report/plan_report.h"
#include "codegen/report/plan_view.h"
#include "codegen/report/roofline.h"
#include "models/model.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/step_profile.h"
#include "tools/fusor/tuning.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

struct PlanFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  bool profile = false;
  int64_t top = 15;
  std::string trace;
  std::string roofline;
  std::string html;
  std::string json;
};

void RunPlan(const PlanFlags& flags) {
  FILE* text = TextStream({flags.trace, flags.roofline, flags.html, flags.json,
                           flags.compile.dump.to});
  CheckOutput("--trace", flags.trace);
  CheckOutput("--roofline", flags.roofline);
  CheckOutput("--html", flags.html);
  CheckOutput("--json", flags.json);
  const auto dumper = OpenDumper(flags.compile.dump);
  models::Model model =
      models::BuildModel(flags.model.arch, models::Phase::kTrain,
                         MakeModelOptions(flags.model, 0));
  const auto session = OpenSession(flags.compile);
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer, dumper);
  const nlohmann::json tuning =
      TuneIfAsked(flags.compile, *model.graph, codegen::ProgramKind::kTrain,
                  *session, options, text);
  const int program = session->AddProgram(
      std::move(model.graph), codegen::ProgramKind::kTrain, options);
  std::vector<double> measured;
  if (flags.profile)
    measured = ProfileSynthetic(flags.model, *session, program);
  const codegen::Plan& plan = session->plan(program);
  const ir::Target& target = session->compiler().target();
  const codegen::PlanReport report = codegen::ReportPlan(
      plan, session->graph(program), session->compiler(), measured);
  const std::string subject =
      fmt::format("{}, batch {}", models::CanonicalArch(flags.model.arch),
                  flags.model.batch);
  fmt::print(text, "{}\n{}", subject,
             codegen::PlanReportText(plan, report, target,
                                     static_cast<size_t>(flags.top)));
  WriteJson(flags.trace, codegen::ChromeTrace(plan, report));
  WriteText(flags.roofline, codegen::RooflineSvg(report, target, subject));
  if (!flags.html.empty()) {
    WriteText(flags.html, codegen::PlanPage(plan, session->graph(program),
                                            report, target, subject));
  }
  nlohmann::json out = codegen::PlanReportJson(plan, report, target);
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.batch;
  if (!tuning.is_null()) out["tuning"] = tuning;
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
  AddTuneFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->add_flag("--profile", flags->profile,
                    "Measure each kernel on synthetic data as well");
  command->add_option("--top", flags->top, "Longest steps to list")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--trace", flags->trace,
                   "Write the step to FILE for Perfetto or chrome://tracing")
      ->type_name("FILE");
  command
      ->add_option("--roofline", flags->roofline,
                   "Write a roofline picture to FILE, SVG")
      ->type_name("FILE");
  command
      ->add_option("--html", flags->html,
                   "Write one self-contained page to FILE")
      ->type_name("FILE");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunPlan(*flags); }; });
}

}  // namespace fusor::tools
