#include "tools/fusor/setup/step_building.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ir/io/printer.h"
#include "ir/shard.h"
#include "models/model.h"
#include "passes/training/averaged_weights.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {
namespace {

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

}  // namespace

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

}  // namespace fusor::tools
