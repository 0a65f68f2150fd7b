#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "ir/support/error.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/module_model.h"
#include "tools/fusor/flags/train_flags.h"
#include "tools/fusor/flags/validators.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/program_source.h"
#include "tools/fusor/setup/rank_options.h"
#include "tools/fusor/setup/step_building.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {
namespace {

using nlohmann::json;

struct CompileCommandFlags {
  ProgramSource source;
  CompileFlags compile;
  OptimizerFlags optimizer;
  PlannedRanks ranks;
  std::string json;
  std::string output;            // program file; empty: none
  int64_t optimizer_batch = -1;  // images per update
};

// A program file's model is fed by `fusor run`; others stay unchanged.
Program OpenSource(const CompileCommandFlags& flags) {
  const int64_t norm_ranks =
      NormRanks(flags.ranks.flags, flags.ranks.world_size);
  if (flags.output.empty()) return OpenProgram(flags.source, norm_ranks);
  models::ModelOptions options = MakeModelOptions(flags.source.model, 0);
  options.norm_ranks = norm_ranks;
  return {models::BuildModel(flags.source.model.arch, models::Phase::kTrain,
                             options)
              .graph};
}

void PrintPasses(FILE* text, const codegen::CompileReport& report) {
  fmt::print(text, "passes    {:<10} {:<22} {:>8} {:>10}\n", "pipeline", "pass",
             "nodes", "ms");
  for (const passes::PassTrace& trace : report.passes) {
    fmt::print(text, "          {:<10} {:<22} {:>8} {:>10.2f}{}\n",
               trace.pipeline, trace.name, trace.nodes_after, trace.ms,
               trace.changed ? "" : "  no change");
  }
}

void PrintArenas(FILE* text, const codegen::Plan& plan) {
  fmt::print(text, "arenas   ");
  for (const codegen::Arena& arena : plan.arenas) {
    fmt::print(text, " {} {:.1f} MiB", arena.name,
               static_cast<double>(arena.bytes) / (1 << 20));
  }
  fmt::print(text, "\n");
}

// With --tune. Opens the device itself.
json Tune(const CompileCommandFlags& flags, const Program& source,
          codegen::CompileOptions& options, FILE* text) {
  if (!flags.compile.tune) return nullptr;
  FUSOR_CHECK(options.start == codegen::GraphStage::kForward, kUsage,
              "--tune: expected a model or its forward graph, got {} after "
              "differentiation",
              flags.source.model.module);
  const auto session = OpenSession(flags.compile);
  const std::string& here = session->compiler().target().name;
  FUSOR_CHECK(flags.compile.target.empty() || flags.compile.target == here,
              kUsage,
              "--tune measures this machine: expected --target {}, got {}",
              here, flags.compile.target);
  return TuneIfAsked(flags.compile, *source.graph, source.kind, *session,
                     options, text);
}

// Returns whether gradients are accumulated before an update.
bool Accumulates(const CompileCommandFlags& flags) {
  TrainFlags train;
  train.model = flags.source.model;
  train.data.world_size = flags.ranks.world_size;
  train.optimizer_batch = flags.optimizer_batch;
  return MicroBatches(train) > 1;
}

void CheckProgramFile(const CompileCommandFlags& flags) {
  if (flags.output.empty()) {
    FUSOR_CHECK(flags.optimizer_batch < 0, kUsage,
                "--optimizer-batch-size: expected --output FILE too");
    return;
  }
  FUSOR_CHECK(flags.source.phase != "eval", kUsage,
              "--output: expected a training step, got --phase eval");
  CheckFed(flags.source.model, /*labels=*/true);
  FUSOR_CHECK(flags.compile.substitutes.empty(), kUsage,
              "--output and --substitute-kernel: expected one of them: a "
              "program file holds kernels as IR, not as edited code");
  FUSOR_CHECK(flags.output != "-", kUsage,
              "--output -: expected a file name: a program file is binary");
  CheckOutput("--output", flags.output);
}

void RunCompile(const CompileCommandFlags& flags, const CLI::App& command) {
  CheckProgramFile(flags);
  FILE* text = TextStream({flags.json, flags.compile.dump.to});
  CheckOutput("--json", flags.json);
  const auto dumper = OpenDumper(flags.compile.dump);
  const auto compiler = OpenCompiler(flags.compile);
  Program source = OpenSource(flags);
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer, dumper);
  SetRankOptions(flags.ranks, options.passes);
  options.start = source.stage;
  const bool accumulates = Accumulates(flags);
  if (accumulates) {
    options.passes.micro_batches = passes::MicroBatches::kFinish;
  }
  const json tuning = Tune(flags, source, options, text);
  const codegen::CompiledProgram program = codegen::Compile(
      std::move(source.graph), source.kind, *compiler, options);
  fmt::print(text, "{} for {} with {} {}\n", program.plan.name,
             program.plan.target, compiler->target().threads,
             compiler->target().simt ? "multiprocessors" : "threads");
  fmt::print(text, "{}", ProgramSummary(program.plan, program.report));
  PrintArenas(text, program.plan);
  PrintPasses(text, program.report);
  json out = ProgramJson(*program.graph, program.plan, program.report);
  out["module"] = program.plan.name;
  if (!tuning.is_null()) out["tuning"] = tuning;
  out["target"] = program.plan.target;
  for (const codegen::Arena& arena : program.plan.arenas) {
    out["arena_bytes"][arena.name] = arena.bytes;
  }
  if (!flags.output.empty()) {
    runtime::WriteProgramFile(
        flags.output, BuildProgramFile(program,
                                       {.model = flags.source.model,
                                        .compile = flags.compile,
                                        .ranks = flags.ranks,
                                        .ema_decay = flags.optimizer.ema_decay,
                                        .accumulates = accumulates},
                                       *compiler, options, command));
    fmt::print(text, "wrote     {}\n", flags.output);
  }
  WriteJson(flags.json, out);
}

}  // namespace

void AddCompile(CLI::App& app, Run* run) {
  auto flags = std::make_shared<CompileCommandFlags>();
  CLI::App* command = app.add_subcommand(
      "compile", "Compile without running; print passes, counts and memory");
  AddProgramSource(*command, flags->source);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddPlannedRankFlags(*command, flags->ranks);
  AddTuneFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  AddTargetFlag(*command, flags->compile);
  command
      ->add_option(
          "-o,--output", flags->output,
          "Write step and evaluation to a program file for `fusor run`")
      ->type_name("FILE");
  AddOptimizerBatchFlag(*command, flags->optimizer_batch);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, command, run] {
    *run = [flags, command] { RunCompile(*flags, *command); };
  });
}

}  // namespace fusor::tools
