#include "tools/fusor/setup/data_source.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "runtime/data/datasets/synthetic.h"
#include "runtime/data/image_check.h"
#include "runtime/data/loader.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"

namespace fusor::tools {
namespace {

// Sets the options of random ops that depend on others or on the model.
void SettleRandomOps(const std::vector<double>& jitter, const ModelFlags& model,
                     runtime::RandomOpsOptions& ops) {
  FUSOR_CHECK(jitter.size() < 5 && jitter.size() != 2, kUsage,
              "--color-jitter: expected one, three or four numbers, got {}",
              jitter.size());
  if (!jitter.empty()) {
    ops.brightness = jitter[0];
    ops.contrast = jitter.size() > 1 ? jitter[1] : jitter[0];
    ops.saturation = jitter.size() > 1 ? jitter[2] : jitter[0];
    ops.hue = jitter.size() > 3 ? jitter[3] : 0;
    FUSOR_CHECK(ops.hue <= 0.5, kUsage,
                "--color-jitter: expected a jitter of the hue of at most 0.5, "
                "got {}",
                ops.hue);
  }
  ops.defer = model.options.augment;
  const std::array<double, 3> mean = MakeModelOptions(model, 0).mean;
  for (size_t c = 0; c < 3; ++c) {
    ops.erased_colour[c] = static_cast<uint8_t>(std::lround(mean[c]));
  }
}

runtime::Transform MakeTransform(const DataFlags& data, const ModelFlags& model,
                                 bool training) {
  using Kind = runtime::TransformKind;
  runtime::Transform transform;
  transform.image_size = static_cast<int>(ImageSize(model));
  const bool cifar = IsCifar(model);
  if (!training) {
    const bool exact = data.val_transform.empty()
                           ? cifar && data.val_resize == 0
                           : data.val_transform == "exact";
    FUSOR_CHECK(!exact || data.val_resize == 0, kUsage,
                "--val-transform exact and --val-resize-size: expected one of "
                "them");
    transform.kind = exact ? Kind::kExact : Kind::kCentreCrop;
    transform.image_size = static_cast<int>(EvalImageSize(data, model));
    transform.shorter_side = static_cast<int>(data.val_resize);
    FUSOR_CHECK(
        data.val_resize == 0 || transform.shorter_side >= transform.image_size,
        kUsage,
        "--val-resize-size {}: expected at least the crop's {} (see "
        "--val-crop-size)",
        data.val_resize, transform.image_size);
    return transform;
  }
  const std::string name = !data.transform.empty() ? data.transform
                           : cifar                 ? "pad-crop"
                                                   : "random-resized-crop";
  transform.kind = name == "random-resized-crop" ? Kind::kRandomResizedCrop
                   : name == "centre-crop"       ? Kind::kCentreCrop
                   : name == "pad-crop"          ? Kind::kPadCrop
                                                 : Kind::kExact;
  transform.ops = data.loader.transform.ops;
  SettleRandomOps(data.jitter, model, transform.ops);
  return transform;
}

// The first input tensor has the same name in the data of all models.
constexpr char kFirstTensor[] = "input";

// Returns the names of the input tensors in a data set.
std::vector<std::string> TensorNames(const ModelFlags& model) {
  std::vector<std::string> names{kFirstTensor};
  if (const auto* custom = CustomOf(model)) {
    for (size_t i = 1; i < custom->inputs.size(); ++i) {
      names.push_back(custom->inputs[i].name);
    }
  }
  return names;
}

// Returns what samples hold for a program of that graph; nothing for images
// with a label each. `data` names the set, `tensors` are its types, or null.
std::optional<runtime::SampleForm> FormOf(
    const ir::Graph& graph, const ModelFlags& model, const std::string& data,
    const runtime::SampleTensors* tensors) {
  const models::CustomModel* custom = CustomOf(model);
  if (graph.FindInput(ir::kModelInput) == nullptr) return std::nullopt;
  const auto inputs =
      std::ranges::count_if(graph.inputs(), [](const ir::Input& input) {
        return ir::IsModelInputName(input.value->name());
      });
  const bool images = (custom == nullptr || custom->classifies) &&
                      inputs == 1 && !model.options.sample.has_value();
  if (tensors == nullptr && images) return std::nullopt;
  const auto sample = [](const ir::Value* value) {
    ir::TensorType type{value->type().dtype, value->type().shape, {}};
    type.shape.erase(type.shape.begin());
    return type;
  };
  runtime::SampleForm form;
  for (const ir::Input& input : graph.inputs()) {
    if (!ir::IsModelInputName(input.value->name())) continue;
    const size_t index = form.inputs.size();
    form.inputs.push_back(
        {index == 0 ? kFirstTensor : ir::OwnInputName(input.value->name()),
         sample(input.value.get())});
    if (custom != nullptr && index < custom->inputs.size() &&
        !ir::IsFloat(form.inputs.back().type.dtype)) {
      form.inputs.back().tokens = custom->inputs[index].tokens;
    }
  }
  ir::Shape target;
  if (const ir::Value* values = graph.FindInput("targets")) {
    target = sample(values).shape;
    form.values = ir::NumElements(target);
  } else {
    target = sample(graph.FindInput("labels")).shape;
    form.labels = ir::NumElements(target);
    form.classes = MakeModelOptions(model, /*classes=*/0).num_classes;
    form.ignores = !target.empty();
  }
  if (tensors == nullptr) return form;
  const bool fits = std::ranges::equal(form.inputs, tensors->inputs, {},
                                       &runtime::InputForm::type) &&
                    tensors->target.shape == target;
  FUSOR_CHECK(fits, kData,
              "{}: the program reads samples of {} and target [{}], got {} and "
              "{}",
              data,
              Join(form.inputs, ", ",
                   [](const runtime::InputForm& input) {
                     return fmt::format("{} {}", input.name,
                                        ToString(input.type));
                   }),
              fmt::join(target, ","),
              Join(tensors->inputs, ", ",
                   [](const ir::TensorType& type) { return ToString(type); }),
              ToString(tensors->target));
  return form;
}

runtime::LoaderOptions MakeLoader(const DataFlags& data,
                                  const ModelFlags& model, bool training) {
  runtime::LoaderOptions options = data.loader;
  options.batch_size = static_cast<int>(model.options.batch);
  options.transform = MakeTransform(data, model, training);
  options.training = training;
  if (!training || !data.repeats) options.repetitions = 1;
  return options;
}

// Throws unless the model classifies images, and there are classes.
void CheckClasses(const runtime::ImageSet& images, const ModelFlags& model) {
  const models::CustomModel* custom = CustomOf(model);
  FUSOR_CHECK(custom == nullptr || custom->classifies, kUsage,
              "{} {}: expected safetensors files with tensors {} and target, "
              "since {} is no classifier of images",
              images.format(), images.path(),
              fmt::join(TensorNames(model), ", "), model.arch);
  FUSOR_CHECK(images.num_classes() > 1 || model.options.num_classes > 1, kData,
              "{} {}: expected at least 2 classes, got only '{}'",
              images.format(), images.path(), images.class_names()[0]);
}

}  // namespace

std::unique_ptr<runtime::ImageSet> OpenImages(const DataFlags& data,
                                              const ModelFlags& model,
                                              Split split) {
  FUSOR_CHECK(data.synthetic == data.path.empty(), kUsage,
              "expected an image folder or --synthetic, got {}",
              data.synthetic ? "both" : "neither");
  if (data.synthetic) return nullptr;
  auto images = runtime::OpenDataset(
      data.path,
      {.split = split,
       .max_per_class = split == Split::kTrain ? data.max_per_class : 0,
       .num_classes = static_cast<int>(model.options.num_classes),
       .inputs = TensorNames(model)});
  if (images == nullptr) return nullptr;
  if (images->tensors() == nullptr) CheckClasses(*images, model);
  for (const std::string& warning : images->warnings()) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  return images;
}

void UseSamples(const runtime::ImageSet* images, ModelFlags& model) {
  model.options.sample.reset();
  if (images == nullptr || images->tensors() == nullptr) return;
  FUSOR_CHECK(model.graph == nullptr || !CustomOf(model)->classifies, kUsage,
              "{} {}: expected images for {}, got tensors", images->format(),
              images->path(), model.arch);
  model.options.sample = {images->tensors()->inputs, images->tensors()->target,
                          images->path()};
}

int64_t EvalImageSize(const DataFlags& data, const ModelFlags& model) {
  return data.val_crop != 0 ? data.val_crop : ImageSize(model);
}

void CheckTransform(const runtime::ImageSet* images, const DataFlags& data,
                    const ModelFlags& model, Split split) {
  if (images == nullptr) return;
  const bool training = split == Split::kTrain;
  const runtime::Transform transform = MakeTransform(data, model, training);
  if (images->tensors() != nullptr) {
    const bool given = training
                           ? !data.transform.empty() || transform.ops.Any()
                           : !data.val_transform.empty() ||
                                 data.val_resize != 0 || data.val_crop != 0;
    FUSOR_CHECK(!given, kUsage,
                "{} {}: expected no flags that transform or augment images, "
                "since tensors are used as they are",
                images->format(), images->path());
    return;
  }
  if (data.loader.bad_record == runtime::BadRecord::kSkip) return;
  try {
    runtime::CheckImages(*images, transform,
                         {.threads = data.loader.threads,
                          .rank = data.loader.rank,
                          .world_size = data.loader.world_size});
  } catch (const Error& error) {
    if (!runtime::TakesOneSize(transform.kind)) throw;
    throw Error(error.code(),
                fmt::format("{}; use {} to resize", error.what(),
                            training ? "--train-transform random-resized-crop"
                                     : "--val-transform centre-crop"));
  }
}

int NumClasses(const runtime::ImageSet* images) {
  return images == nullptr ? 0 : images->num_classes();
}

runtime::AllocateImages ImagesFor(runtime::Session& session) {
  return [&session](size_t bytes) {
    const std::shared_ptr<runtime::Memory> memory = session.AllocateHost(bytes);
    return std::shared_ptr<uint8_t>(memory,
                                    static_cast<uint8_t*>(memory->data()));
  };
}

std::unique_ptr<runtime::BatchSource> OpenTraining(
    std::unique_ptr<runtime::ImageSet> images, const DataFlags& data,
    const ModelFlags& model, const ir::Graph& graph, int64_t start,
    int64_t micro_batches, const runtime::AllocateImages& allocate) {
  const std::optional<runtime::SampleForm> form = FormOf(
      graph, model, data.path, images == nullptr ? nullptr : images->tensors());
  if (images != nullptr) {
    runtime::LoaderOptions options = MakeLoader(data, model, /*training=*/true);
    options.form = form;
    const int64_t per_epoch =
        runtime::Sampler({.samples = images->size(),
                          .batch_size = options.batch_size,
                          .world_size = options.world_size,
                          .training = true,
                          .repetitions = options.repetitions})
            .batches_per_epoch();
    const int64_t updates = runtime::UpdatesPerEpoch(per_epoch, micro_batches);
    options.start_epoch = start / updates;
    options.start_batch = start % updates * micro_batches;
    options.allocate = allocate;
    return std::make_unique<runtime::Loader>(std::move(images), options);
  }
  runtime::SyntheticOptions options;
  options.form = form;
  options.batch_size = static_cast<int>(model.options.batch);
  options.image_size = static_cast<int>(ImageSize(model));
  options.num_classes =
      static_cast<int>(MakeModelOptions(model, /*classes=*/0).num_classes);
  options.seed = data.loader.seed;
  options.rank = data.loader.rank;
  options.world_size = data.loader.world_size;
  options.start = start * micro_batches;
  options.allocate = allocate;
  return std::make_unique<runtime::SyntheticSource>(options);
}

std::unique_ptr<runtime::BatchSource> OpenEvaluation(
    std::unique_ptr<const runtime::Dataset> images, const DataFlags& data,
    const ModelFlags& model, const ir::Graph& graph,
    const runtime::AllocateImages& allocate) {
  runtime::LoaderOptions options = MakeLoader(data, model, /*training=*/false);
  options.form = FormOf(graph, model, data.path, images->tensors());
  options.allocate = allocate;
  return std::make_unique<runtime::Loader>(std::move(images), options);
}

int64_t SourceBytes(const DataFlags& data, const ModelFlags& model,
                    Split split) {
  runtime::LoaderOptions options =
      MakeLoader(data, model, split == Split::kTrain);
  if (const auto& sample = model.options.sample) {
    options.form = {.labels = sample->target->num_elements()};
    for (const ir::TensorType& type : sample->inputs) {
      options.form->inputs.push_back({"", type});
    }
  }
  if (data.synthetic) options.prefetch = 0;
  return runtime::LoaderBytes(options);
}

}  // namespace fusor::tools
