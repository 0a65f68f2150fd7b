#include "tools/fusor/setup/trained_model.h"

#include <charconv>
#include <utility>

#include "models/model.h"
#include "runtime/checkpoint/weights.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/memory_advice.h"
#include "tools/fusor/setup/weight_description.h"
#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {
namespace {

// Returns the number of classes; 0 if the description has no valid one.
int64_t TrainedClasses(const runtime::Metadata& description) {
  const auto entry = description.find("fusor.num_classes");
  if (entry == description.end()) return 0;
  const std::string& text = entry->second;
  int64_t classes = 0;
  const auto parsed =
      std::from_chars(text.data(), text.data() + text.size(), classes);
  constexpr int64_t kMost = 1 << 20;
  const bool sound = parsed.ec == std::errc() &&
                     parsed.ptr == text.data() + text.size() && classes > 0;
  return sound && classes <= kMost ? classes : 0;
}

}  // namespace

void AddTrainedFlags(CLI::App& app, TrainedFlags& f) {
  app.add_option("--weights", f.weights,
                 "Safetensors file with torchvision's names")
      ->required()
      ->type_name("FILE");
  AddMismatchFlag(app, f.allow_mismatch);
}

TrainedModel OpenTrained(const TrainedFlags& flags, const ModelFlags& model,
                         const CompileFlags& compile, const DataFlags& data,
                         const runtime::ImageFolder* images,
                         const std::shared_ptr<codegen::Dumper>& dumper) {
  const std::string& path = flags.weights;
  const runtime::Safetensors weights = runtime::ReadWeights(path);
  ModelFlags own = model;
  if (images == nullptr && own.num_classes == 0) {
    own.num_classes = TrainedClasses(weights.metadata);
  }
  models::ModelOptions options = MakeModelOptions(own, NumClasses(images));
  if (!flags.allow_mismatch) {
    CheckDescription(
        path, weights.metadata,
        DescribeWeights(models::CanonicalArch(own.arch), options, images),
        ClassCheck::kSame);
  }
  options.image_size = EvalImageSize(data, own);
  options.per_image = true;
  TrainedModel trained{.session = OpenSession(compile),
                       .classes = options.num_classes,
                       .class_names = images != nullptr
                                          ? images->class_names()
                                          : ClassNames(weights.metadata)};
  trained.program = AddFirstProgram(
      *trained.session, compile, own.arch, models::Phase::kEval, options,
      MakeCompileOptions(compile, {}, dumper), SourceBytes(data, own));
  const runtime::WeightMatch match =
      runtime::LoadWeights(trained.session->state(), weights, path);
  if (!flags.allow_mismatch) CheckUnused(path, match.unused);
  return trained;
}

}  // namespace fusor::tools
