#include <fmt/core.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "codegen/kernel_ir.h"
#include "ir/printer.h"
#include "ir/support/error.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

struct DumpFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  std::string emit = "summary";
  std::string phase = "train";
  std::string json;
};

void RunDump(const DumpFlags& flags) {
  const bool train = flags.phase == "train";
  models::Model model = models::BuildModel(
      flags.model.arch, train ? models::Phase::kTrain : models::Phase::kEval,
      MakeModelOptions(flags.model, 0));
  std::map<std::string, std::string> stages;
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer);
  options.observer = [&](const std::string& stage, const ir::Graph& graph) {
    if (stage == flags.emit) stages[stage] = ir::Print(graph);
  };
  const auto session = OpenSession(flags.compile);
  const int program = session->AddProgram(
      std::move(model.graph),
      train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval,
      options);
  const codegen::Plan& plan = session->plan(program);
  if (flags.emit == "summary") {
    std::cout << ProgramSummary(*session, program);
  } else if (flags.emit == "plan") {
    std::cout << codegen::Print(plan);
  } else if (flags.emit == "kernels") {
    for (const codegen::CompiledKernel& kernel : plan.kernels) {
      std::cout << codegen::Print(kernel.kernel) << "\n";
    }
  } else {
    FUSOR_CHECK(stages.contains(flags.emit), kUsage,
                "--emit={}: an evaluation program has no such stage",
                flags.emit);
    std::cout << stages[flags.emit];
  }
  std::cout << std::flush;
  WriteJson(flags.json, ProgramJson(*session, program));
}

}  // namespace

void AddDump(CLI::App& app, Run* run) {
  auto flags = std::make_shared<DumpFlags>();
  CLI::App* command =
      app.add_subcommand("dump", "Print a model at one stage of compilation");
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  command
      ->add_option("--emit", flags->emit,
                   "graph, train, optimized, plan, kernels or summary")
      ->capture_default_str()
      ->check(CLI::IsMember(
          {"graph", "train", "optimized", "plan", "kernels", "summary"}));
  command->add_option("--phase", flags->phase, "train or eval")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "eval"}));
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunDump(*flags); }; });
}

}  // namespace fusor::tools
