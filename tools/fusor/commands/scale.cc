#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/program.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/batch_fit.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/step_profile.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::tools {
namespace {

struct ScaleFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  inspect::ScaleOptions options = {.nodes = 2, .gpus = 8};
  std::string cluster = "dgx-h200";
  std::string wire = "auto";
  double slack_ms = 0.3;
  bool profile = false;
  double rank_rate = 0;
  std::string svg;
  std::string json;
};

inspect::StepTimeline ModelledTimeline(const ScaleFlags& flags,
                                       std::string& target) {
  const auto compiler = OpenCompiler(flags.compile);
  const codegen::CompiledProgram program =
      PlanOf(*compiler, flags.model.arch, models::Phase::kTrain,
             MakeModelOptions(flags.model, 0),
             MakeCompileOptions(flags.compile, flags.optimizer));
  target = program.plan.target;
  return inspect::TimelineOf(
      program.plan, *program.graph,
      inspect::ReportPlan(program.plan, *program.graph, *compiler));
}

inspect::StepTimeline MeasuredTimeline(const ScaleFlags& flags,
                                       std::string& target) {
  FUSOR_CHECK(flags.compile.target.empty(), kUsage,
              "--profile and --target: expected one of them");
  const auto session = OpenSession(flags.compile);
  models::Model model =
      models::BuildModel(flags.model.arch, models::Phase::kTrain,
                         MakeModelOptions(flags.model, 0));
  runtime::Program& program =
      session->Compile(std::move(model.graph), codegen::ProgramKind::kTrain,
                       MakeCompileOptions(flags.compile, flags.optimizer));
  const std::vector<double> ms =
      ProfileSynthetic(flags.model, *session, program);
  const codegen::Plan& plan = program.plan();
  target = plan.target;
  return inspect::TimelineOf(
      plan, program.graph(),
      inspect::ReportPlan(plan, program.graph(), session->compiler(), ms));
}

// With mixed precision, gradients can be sent in 16 bit. In fp32 they are sent
// unchanged unless requested otherwise.
int64_t WireBytes(const ScaleFlags& flags) {
  if (flags.wire != "auto") return flags.wire == "16" ? 2 : 4;
  return flags.compile.amp || flags.compile.dtype != "fp32" ? 2 : 4;
}

void RunScale(const ScaleFlags& flags) {
  FILE* text = TextStream({flags.svg, flags.json});
  CheckOutput("--svg", flags.svg);
  CheckOutput("--json", flags.json);
  inspect::ScaleReport report;
  report.cluster = OpenCluster(flags.cluster);
  inspect::ScaleOptions options = flags.options;
  options.batch = flags.model.options.batch;
  options.policy.element_bytes = WireBytes(flags);
  options.policy.slack_seconds = flags.slack_ms * 1e-3;
  report.timeline = flags.profile ? MeasuredTimeline(flags, report.target)
                                  : ModelledTimeline(flags, report.target);
  report.source = flags.profile ? "measured" : "estimated";
  if (flags.rank_rate > 0) {
    report.timeline = inspect::Stretched(
        std::move(report.timeline),
        static_cast<double>(flags.model.options.batch) / flags.rank_rate);
    report.source += ", scaled to --rank-rate";
    report.target.clear();  // the speed is the cluster's own
  }
  report.subject =
      fmt::format("{}, batch {}", models::CanonicalArch(flags.model.arch),
                  flags.model.options.batch);
  report.alternatives =
      inspect::Alternatives(report.timeline, report.cluster, options);
  fmt::print(text, "{}", inspect::ScaleText(report));
  WriteText(flags.svg, inspect::ScaleSvg(report));
  nlohmann::json out = inspect::ScaleJson(report);
  out["arch"] = models::CanonicalArch(flags.model.arch);
  WriteJson(flags.json, out);
}

void AddPredictionFlags(CLI::App& command, ScaleFlags& flags) {
  command.option_defaults()->group("Prediction");
  command.add_option("--nodes", flags.options.nodes, "Nodes")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 16));
  command.add_option("--gpus", flags.options.gpus, "Ranks per node")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 10));
  command
      .add_option("--cluster", flags.cluster,
                  "Network links: a name from ir/target/clusters/, or a file")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  AddBucketPolicy(command, flags.options.policy);
  command
      .add_option("--bucket-slack", flags.slack_ms,
                  "Policy exact: ms by which fewer buckets may delay the last "
                  "all-reduce")
      ->capture_default_str()
      ->check(Number(0, 1e6));
  command
      .add_option(
          "--wire", flags.wire,
          "Communication bits per gradient (auto: 16 with mixed precision)")
      ->capture_default_str()
      ->check(OneOf({"auto", "32", "16"}));
  command.add_flag(
      "--sharded-optimizer", flags.options.sharded,
      "Shard the optimizer: reduce-scatter, update a shard, all-gather");
  command
      .add_option("--input-rate", flags.options.input_rate,
                  "Maximum images/s of a node's input pipeline")
      ->check(Number(1e-6, 1e12));
  command.add_flag("--profile", flags.profile,
                   "Measure the step here instead of estimating it");
  command
      .add_option("--rank-rate", flags.rank_rate,
                  "Measured images/s of one rank; scales the timeline")
      ->check(Number(1e-6, 1e12));
  command
      .add_option(
          "--node-rate", flags.options.node_rate,
          "Measured images/s of one node; scales the step on several nodes")
      ->check(Number(1e-6, 1e12));
  command.option_defaults()->group("Options");
}

}  // namespace

void AddScale(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ScaleFlags>();
  CLI::App* command = app.add_subcommand(
      "scale", "Predict step time and speedup on several ranks and nodes");
  AddModelFlags(*command, flags->model);
  AddPredictionFlags(*command, *flags);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddTargetFlag(*command, flags->compile);
  command
      ->add_option("--svg", flags->svg,
                   "Write a chart of the step to FILE (SVG)")
      ->type_name("FILE");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunScale(*flags); }; });
}

}  // namespace fusor::tools
