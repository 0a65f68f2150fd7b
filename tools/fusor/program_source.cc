#include "tools/fusor/program_source.h"

#include "models/model.h"
#include "tools/fusor/module_file.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {

void AddProgramSource(CLI::App& app, ProgramSource& source) {
  AddModelFlags(app, source.model);
  app.add_option("--module", source.module,
                 "A module in a file, IR text or protobuf, instead of --arch")
      ->type_name("FILE");
  app.add_option("--phase", source.phase, "Of --arch: train or eval")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "eval"}));
}

Program OpenProgram(const ProgramSource& source) {
  if (!source.module.empty()) {
    Program program{ReadModule(source.module)};
    program.kind = KindOf(*program.graph);
    program.stage = codegen::StageOf(*program.graph);
    return program;
  }
  const bool train = source.phase == "train";
  return {
      models::BuildModel(source.model.arch,
                         train ? models::Phase::kTrain : models::Phase::kEval,
                         MakeModelOptions(source.model, 0))
          .graph,
      train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval};
}

}  // namespace fusor::tools
