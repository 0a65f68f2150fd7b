#include "tools/fusor/setup/model_setup.h"

#include <algorithm>

#include "ir/support/error.h"
#include "models/model.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"

namespace fusor::tools {

bool IsCifar(const ModelFlags& flags) {
  return flags.arch.find("cifar") != std::string::npos;
}

int64_t ImageSize(const ModelFlags& flags) {
  if (flags.options.image_size != 0) return flags.options.image_size;
  return IsCifar(flags) ? 32 : 224;
}

models::ModelOptions MakeModelOptions(const ModelFlags& flags, int classes) {
  models::ModelOptions options = flags.options;
  options.image_size = ImageSize(flags);
  const models::CustomModel* custom = CustomOf(flags);
  const bool own = custom != nullptr && custom->num_classes != 0;
  if (options.num_classes == 0) {
    options.num_classes = classes != 0 ? classes
                          : own        ? custom->num_classes
                                       : kDefaultClasses;
  }
  FUSOR_CHECK(classes <= options.num_classes, kUsage,
              "--num-classes: expected at least the {} classes of the data, "
              "got {}",
              classes, flags.options.num_classes);
  options.mixup = flags.mix.mixup > 0;
  options.cutmix = flags.mix.cutmix > 0;
  if (IsCifar(flags)) {
    options.mean = {125.3, 123.0, 113.9};
    options.std = {63.0, 62.1, 66.7};
  }
  if (!flags.mean.empty()) {
    std::copy(flags.mean.begin(), flags.mean.end(), options.mean.begin());
  }
  if (!flags.std.empty()) {
    std::copy(flags.std.begin(), flags.std.end(), options.std.begin());
  }
  return options;
}

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
    models::FreezeParameters(*program.graph, source.model.options.freeze);
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
