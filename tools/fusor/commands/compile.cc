#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/io/printer.h"
#include "ir/shard.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "passes/training/training_state.h"
#include "runtime/program_file.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/train_flags.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/tuning.h"

namespace fusor::tools {
namespace {

// What a program file contains besides the training program.
struct StepParts {
  ModelFlags model;
  CompileFlags compile;
  PlannedRanks ranks;
  double ema_decay = 0;
  bool accumulates = false;
};

// Options under these headings affect compilation,
constexpr std::array<std::string_view, 6> kCompiled = {
    "Model", "Compilation", "Training", "Loss scale", "Ranks", "Run"};
// except these: specific to one compilation, or stored elsewhere in the file.
constexpr std::array<std::string_view, 13> kNotKept = {
    "module",       "target",
    "backend",      "threads",
    "kernel-cache", "verify",
    "choices",      "verify-each",
    "num-classes",  "substitute-kernel",
    "world-size",   "nproc-per-node",
    "cuda-graph"};

std::vector<std::string> KeptOptions(const CLI::App& command,
                                     const ModelFlags& model) {
  const auto among = [](const auto& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  // Independent of the data's number of classes.
  std::vector<std::string> words{
      "--num-classes", std::to_string(MakeModelOptions(model, 0).num_classes)};
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty() ||
        !among(kCompiled, option->get_group()) ||
        among(kNotKept, option->get_lnames()[0])) {
      continue;
    }
    for (std::string& word : WordsOf(*option)) words.push_back(std::move(word));
  }
  return words;
}

// Builds the file of a training step that was compiled with `options`. Adds the
// evaluation program and, for gradient accumulation, the accumulation program,
// compiled against its state. `command`: provides the given options. Throws
// what codegen::Compile throws.
runtime::ProgramFile BuildProgramFile(const codegen::CompiledProgram& train,
                                      const StepParts& parts,
                                      const codegen::TargetCompiler& compiler,
                                      const codegen::CompileOptions& options,
                                      const CLI::App& command) {
  using codegen::ProgramKind;
  models::ModelOptions model = MakeModelOptions(parts.model, 0);
  model.norm_ranks = NormRanks(parts.ranks.flags, parts.ranks.world_size);
  const codegen::StateLayout state = codegen::StateOf(train.plan);
  codegen::CompileOptions with_state = options;
  with_state.state = &state;
  with_state.substitutes.clear();  // they are of the training program
  runtime::ProgramFile file{
      .origin = runtime::OriginHere(FUSOR_VERSION, compiler),
      .backend = BackendOf(parts.compile),
      .world_size = static_cast<int>(parts.ranks.world_size),
      .options = KeptOptions(command, parts.model),
      .module =
          parts.model.graph == nullptr ? "" : ir::Print(*parts.model.graph),
      .programs = {runtime::PackProgram(ProgramKind::kTrain, train)}};
  const auto add = [&](ProgramKind kind, std::unique_ptr<ir::Graph> graph) {
    file.programs.push_back(runtime::PackProgram(
        kind, codegen::Compile(std::move(graph), kind, compiler, with_state)));
  };
  if (parts.accumulates) {
    add(ProgramKind::kAccumulate,
        models::BuildModel(parts.model.arch, models::Phase::kTrain, model)
            .graph);
  }
  if (parts.model.graph != nullptr) return file;  // has no evaluation program
  auto eval =
      models::BuildModel(parts.model.arch, models::Phase::kEval, model).graph;
  if (parts.ema_decay > 0) {
    passes::ReadAverages(*eval, [&](const std::string& parameter) {
      return state.Find(ir::ShardName(parameter)) != nullptr;
    });
  }
  add(ProgramKind::kEval, std::move(eval));
  return file;
}

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
  train.data.loader.world_size = flags.ranks.world_size;
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
        flags.output,
        BuildProgramFile(program,
                         {.model = flags.source.model,
                          .compile = flags.compile,
                          .ranks = flags.ranks,
                          .ema_decay = flags.optimizer.options.ema_decay,
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
      ->add_option("-o,--output", flags->output,
                   "Write training step and evaluation to a program file (see "
                   "`fusor run`)")
      ->type_name("FILE");
  AddOptimizerBatchFlag(*command, flags->optimizer_batch);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, command, run] {
    *run = [flags, command] { RunCompile(*flags, *command); };
  });
}

}  // namespace fusor::tools
