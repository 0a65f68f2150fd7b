#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/report/decisions.h"

namespace fusor::tools {
namespace {

struct DumpCommandFlags {
  ProgramSource source;
  CompileFlags compile;
  OptimizerFlags optimizer;
  PlannedRanks ranks;
  std::string emit = "summary";
  std::string json;
};

// Returns the optimised graph with the kernel of each fusion.
std::string OptimizedText(const codegen::CompiledProgram& program) {
  std::map<std::string, std::string> kernels;
  const codegen::Plan& plan = program.plan;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) continue;
    kernels[step.name] = "kernel " + plan.kernels[step.index].kernel.name;
  }
  return ir::Print(*program.graph, {.comment = [&](const ir::Node& node) {
    const auto found = kernels.find(node.output()->name());
    return found == kernels.end() ? "" : found->second;
  }});
}

void RunDump(const DumpCommandFlags& flags) {
  FILE* text = TextStream({flags.json, flags.compile.dump.to});
  CheckOutput("--json", flags.json);
  const auto dumper = OpenDumper(flags.compile.dump);
  const auto compiler = OpenCompiler(flags.compile);
  std::map<std::string, std::string> stages;
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer, dumper);
  SetRankOptions(flags.ranks, options.passes);
  Program source = OpenProgram(
      flags.source, NormRanks(flags.ranks.flags, flags.ranks.world_size));
  options.start = source.stage;
  options.observers.push_back(
      {.stage = [&](const std::string& stage, const ir::Graph& graph) {
        if (stage == flags.emit) stages[stage] = ir::Print(graph);
      }});
  const codegen::CompiledProgram program = codegen::Compile(
      std::move(source.graph), source.kind, *compiler, options);
  const codegen::Plan& plan = program.plan;
  if (flags.emit == "summary") {
    fmt::print(text, "{}{}", ProgramSummary(plan, program.report),
               inspect::DecisionTableText(inspect::TabulateDecisions(
                   program.report.decisions, "mixed_precision")));
  } else if (flags.emit == "plan") {
    fmt::print(text, "{}", codegen::Print(plan));
  } else if (flags.emit == "kernels") {
    fmt::print(text, "{}", KernelText(plan));
  } else if (flags.emit == "optimized") {
    fmt::print(text, "{}", OptimizedText(program));
  } else {
    FUSOR_CHECK(stages.contains(flags.emit), kUsage,
                "--emit={}: {} has no such stage", flags.emit, plan.name);
    fmt::print(text, "{}", stages[flags.emit]);
  }
  WriteJson(flags.json, ProgramJson(*program.graph, plan, program.report));
}

}  // namespace

void AddDump(CLI::App& app, Run* run) {
  auto flags = std::make_shared<DumpCommandFlags>();
  CLI::App* command =
      app.add_subcommand("dump", "Print a model at one stage of compilation");
  AddProgramSource(*command, flags->source);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddPlannedRankFlags(*command, flags->ranks);
  AddDumpFlags(*command, flags->compile.dump);
  AddTargetFlag(*command, flags->compile);
  command->option_defaults()->group("Run");
  command
      ->add_option(
          "--emit", flags->emit,
          "Stage to print: graph, train, optimized, plan, kernels or summary")
      ->capture_default_str()
      ->check(
          OneOf({"graph", "train", "optimized", "plan", "kernels", "summary"}));
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunDump(*flags); }; });
}

}  // namespace fusor::tools
