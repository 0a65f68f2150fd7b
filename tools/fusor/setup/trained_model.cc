#include "tools/fusor/setup/trained_model.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/checkpoint/weights.h"
#include "tools/fusor/setup/batch_fit.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"

namespace fusor::tools {

namespace {

using nlohmann::json;
using runtime::Metadata;

constexpr char kClassNames[] = "fusor.class_names";

struct Setting {
  const char* key;
  const char* flag;  // sets the value
};
constexpr Setting kNumClasses = {"fusor.num_classes", "--num-classes"};
constexpr Setting kSettings[] = {{kArchKey, "--arch"},
                                 {"fusor.image_size", "--image-size"},
                                 {"fusor.mean", "--mean"},
                                 {"fusor.std", "--std"},
                                 kNumClasses};

// A module may be a dumped built-in model, so only its tensor names count.
bool SameModel(const std::string& was, const std::string& is) {
  constexpr std::string_view kModule = "module:";
  return was == is || models::SameNetwork(was, is) ||
         was.starts_with(kModule) != is.starts_with(kModule);
}

// Returns the file's value if both have the entry and differ, otherwise null.
const std::string* Differing(const Metadata& file, const Metadata& expected,
                             const char* key) {
  const auto was = file.find(key);
  const auto is = expected.find(key);
  if (was == file.end() || is == expected.end()) return nullptr;
  const bool same = key == std::string_view(kArchKey)
                        ? SameModel(was->second, is->second)
                        : was->second == is->second;
  return same ? nullptr : &was->second;
}

void CheckClassNames(const std::string& path, const Metadata& file,
                     const Metadata& expected) {
  if (Differing(file, expected, kClassNames) == nullptr) return;
  const std::vector<std::string> was = ClassNames(file);
  const std::vector<std::string> is = ClassNames(expected);
  const size_t both = std::min(was.size(), is.size());
  const auto parted = std::mismatch(
      was.begin(), was.begin() + static_cast<long>(both), is.begin());
  const auto at = static_cast<size_t>(parted.first - was.begin());
  const auto name = [at](const std::vector<std::string>& names) {
    return at < names.size() ? "'" + names[at] + "'" : std::string("none");
  };
  ThrowError(ErrorCode::kCheckpoint,
             fmt::format("{}: trained on other classes: class {} was {}, the "
                         "data has {}: expected the data's classes, or "
                         "--allow-mismatch",
                         path, at, name(was), name(is)));
}

}  // namespace

Metadata DescribeWeights(const std::string& arch,
                         const models::ModelOptions& model,
                         const runtime::ImageSet* images) {
  Metadata description = {
      {kArchKey, arch},
      {"fusor.image_size", fmt::format("{}", model.image_size)},
      {"fusor.mean", fmt::format("{}", fmt::join(model.mean, ","))},
      {"fusor.std", fmt::format("{}", fmt::join(model.std, ","))},
      {kNumClasses.key, fmt::format("{}", model.num_classes)}};
  const models::CustomModel* custom = models::FindCustomModel(arch);
  if (custom != nullptr && !custom->normalizes) {
    description.erase("fusor.mean");
    description.erase("fusor.std");
  }
  if (images != nullptr && !images->class_names().empty()) {
    // Folder names may not be UTF-8.
    description[kClassNames] = json(images->class_names())
                                   .dump(-1, ' ', /*ensure_ascii=*/false,
                                         json::error_handler_t::replace);
  }
  return description;
}

void CheckDescription(const std::string& path, const Metadata& file,
                      const Metadata& expected, ClassCheck classes) {
  for (const Setting& setting : kSettings) {
    if (setting.key == kNumClasses.key && classes == ClassCheck::kAny) continue;
    const std::string* was = Differing(file, expected, setting.key);
    FUSOR_CHECK(was == nullptr, kCheckpoint,
                "{}: trained with {} {}, this command has {}: expected {} {}, "
                "or --allow-mismatch to use the weights anyway",
                path, setting.flag, *was, expected.at(setting.key),
                setting.flag, *was);
  }
  if (classes == ClassCheck::kSame) CheckClassNames(path, file, expected);
}

void CheckUnused(const std::string& path,
                 const std::vector<std::string>& unused) {
  FUSOR_CHECK(
      unused.empty(), kCheckpoint,
      "{}: tensor {}: the model has no such tensor ({} in all): expected the "
      "--arch of the weights, or --allow-mismatch to ignore them",
      path, unused[0], unused.size());
}

void AddMismatchFlag(CLI::App& app, bool& allow) {
  app.add_flag("--allow-mismatch", allow,
               "Accept weights of another model, image size or normalisation");
}

std::vector<std::string> ClassNames(const Metadata& description) {
  const auto entry = description.find(kClassNames);
  if (entry == description.end()) return {};
  const json names = json::parse(entry->second, nullptr,
                                 /*allow_exceptions=*/false);
  const bool strings =
      names.is_array() &&
      std::all_of(names.begin(), names.end(),
                  [](const json& name) { return name.is_string(); });
  return strings ? names.get<std::vector<std::string>>()
                 : std::vector<std::string>{};
}

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
  f.command = app.get_name();
  app.add_option("--weights", f.weights,
                 "Weights: a safetensors file with torchvision's names "
                 "(default: those of a .pt2 or .onnx model)")
      ->type_name("FILE");
  AddMismatchFlag(app, f.allow_mismatch);
}

TrainedModel OpenTrained(const TrainedFlags& flags, const ModelFlags& model,
                         const CompileFlags& compile, const DataFlags& data,
                         const runtime::ImageSet* images,
                         const std::shared_ptr<inspect::Dumper>& dumper) {
  const models::CustomModel* custom = CustomOf(model);
  const bool brings = custom != nullptr && custom->weights != nullptr;
  FUSOR_CHECK(brings || !flags.weights.empty(), kUsage,
              "{}: expected --weights, got none", flags.command);
  const std::string& path = flags.weights.empty() ? model.arch : flags.weights;
  const runtime::Safetensors weights =
      flags.weights.empty() ? runtime::Safetensors{custom->weights(), {}}
                            : runtime::ReadWeights(path);
  ModelFlags own = model;
  if (NumClasses(images) == 0 && own.options.num_classes == 0) {
    own.options.num_classes = TrainedClasses(weights.metadata);
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
  TrainedModel trained{
      .session = OpenSession(compile),
      .classes = options.num_classes,
      .class_names = images != nullptr && !images->class_names().empty()
                         ? images->class_names()
                         : ClassNames(weights.metadata)};
  const HostUse use{.data_bytes = SourceBytes(data, own, Split::kVal),
                    .loads = true};
  trained.program = &AddFirstProgram(
      *trained.session, compile, own.arch, models::Phase::kEval, options,
      MakeCompileOptions(compile, {}, dumper), use);
  trained.needed_bytes = NeededBytes(*trained.session, {trained.program}, use);
  const runtime::WeightMatch match =
      runtime::LoadWeights(trained.session->state(), weights, path);
  if (!flags.allow_mismatch) CheckUnused(path, match.unused);
  return trained;
}

}  // namespace fusor::tools
