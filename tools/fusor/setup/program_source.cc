#include "tools/fusor/setup/program_source.h"

#include "models/model.h"
#include "tools/fusor/flags/validators.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {

void AddProgramSource(CLI::App& app, ProgramSource& source) {
  AddModelFlags(app, source.model);
  app.add_option(
         "--phase", source.phase,
         "Phase: train or eval (default: train; without output \"loss\": eval)")
      ->check(OneOf({"train", "eval"}));
}

Program OpenProgram(const ProgramSource& source, int64_t norm_ranks) {
  using codegen::ProgramKind;
  const bool eval = source.phase == "eval";
  if (source.model.graph != nullptr) {
    Program program{source.model.graph->Clone()};
    models::FreezeParameters(*program.graph, source.model.freeze);
    program.kind = source.phase.empty() ? KindOf(*program.graph)
                   : eval               ? ProgramKind::kEval
                                        : ProgramKind::kTrain;
    program.stage = codegen::StageOf(*program.graph);
    return program;
  }
  models::ModelOptions options = MakeModelOptions(source.model, 0);
  options.norm_ranks = norm_ranks;
  return {models::BuildModel(
              source.model.arch,
              eval ? models::Phase::kEval : models::Phase::kTrain, options)
              .graph,
          eval ? ProgramKind::kEval : ProgramKind::kTrain};
}

}  // namespace fusor::tools
