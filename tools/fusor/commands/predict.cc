#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/dataset.h"
#include "runtime/data/datasets/image_folder.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/program.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/fusor/setup/trained_model.h"

namespace fusor::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kTop = 5;

struct PredictFlags {
  ModelFlags model;
  CompileFlags compile;
  DataFlags data;
  TrainedFlags trained;
  std::vector<std::string> images;
  std::string logits;
  std::string json;
};

// Image files without labels.
class ImageList : public runtime::Dataset {
 public:
  // `paths`: files as given, and folders with all images below, sorted.
  explicit ImageList(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      std::error_code error;
      if (fs::is_directory(path, error)) {
        AddFolder(path);
      } else {
        paths_.push_back(path);
      }
    }
  }

  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  int num_classes() const override { return 1; }
  int32_t Label(int64_t) const override { return 0; }
  std::string Name(int64_t index) const override { return paths_[index]; }
  runtime::Sample Read(int64_t index,
                       std::vector<uint8_t>& storage) const override {
    ReadFile(paths_[index], ErrorCode::kData, storage);
    return {storage, 0};
  }

 private:
  void AddFolder(const std::string& folder) {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string path = entry.path().string();
      if (runtime::HasImageExtension(path) && !entry.is_directory()) {
        found.push_back(path);
      }
    }
    FUSOR_CHECK(!found.empty(), kData, "{}: no images in this folder", folder);
    std::sort(found.begin(), found.end());
    paths_.insert(paths_.end(), found.begin(), found.end());
  }

  std::vector<std::string> paths_;
};

struct Guess {
  size_t label;
  double probability;
};

// Returns the most probable classes, best first. The lower label wins ties.
std::vector<Guess> Best(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit} - most);
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min(kTop, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<long>(count),
                    order.end(), [&](size_t a, size_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b]
                                                    : a < b;
                    });
  std::vector<Guess> best;
  for (size_t i = 0; i < count; ++i) {
    const size_t label = order[i];
    best.push_back({label, std::exp(double{logits[label]} - most) / total});
  }
  return best;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

struct Predictions {
  std::vector<std::string> paths;
  std::vector<float> logits;  // [paths, classes]
  size_t classes = 0;
  std::vector<std::string> class_names;

  std::span<const float> Row(size_t i) const {
    return std::span(logits).subspan(i * classes, classes);
  }
  std::string ClassName(size_t label) const {
    return label < class_names.size() ? class_names[label]
                                      : fmt::format("{}", label);
  }
};

bool IsCsv(const std::string& path) { return path.ends_with(".csv"); }

void WriteCsv(const std::string& path, const Predictions& predictions) {
  std::string text = "image";
  for (size_t c = 0; c < predictions.classes; ++c) {
    text += "," + Quoted(predictions.ClassName(c));
  }
  text += "\n";
  for (size_t i = 0; i < predictions.paths.size(); ++i) {
    text += Quoted(predictions.paths[i]);
    for (const float logit : predictions.Row(i)) {
      text += fmt::format(",{}", logit);
    }
    text += "\n";
  }
  WriteFileAtomically(path, text, ErrorCode::kUsage);
}

std::string JsonText(const std::vector<std::string>& list) {
  return json(list).dump(-1, ' ', false, json::error_handler_t::replace);
}

void WriteTensor(const std::string& path, const Predictions& predictions) {
  const std::span<const float> logits = predictions.logits;
  const ir::TensorSource tensor = ir::SourceOf(
      "logits",
      {ir::DType::kF32,
       {static_cast<int64_t>(predictions.paths.size()),
        static_cast<int64_t>(predictions.classes)},
       {}},
      {reinterpret_cast<const uint8_t*>(logits.data()), logits.size_bytes()});
  runtime::Metadata metadata = {{"images", JsonText(predictions.paths)}};
  if (!predictions.class_names.empty()) {
    metadata["class_names"] = JsonText(predictions.class_names);
  }
  runtime::WriteSafetensors(path, std::span(&tensor, 1), metadata);
}

void WriteLogits(const std::string& path, const Predictions& predictions) {
  if (path.empty()) return;
  IsCsv(path) ? WriteCsv(path, predictions) : WriteTensor(path, predictions);
}

// Runs every image once.
Predictions Predict(TrainedModel& model, runtime::BatchSource& source,
                    const runtime::Dataset& images) {
  runtime::Program& program = *model.program;
  const int input = program.FindInput("images");
  const int output = program.FindOutput("logits");
  Predictions predictions;
  predictions.class_names = model.class_names;
  Progress progress("predict");
  for (int64_t b = 0; b < source.batches_per_epoch(); ++b) {
    if (StopRequested()) break;
    progress.Show(b, source.batches_per_epoch());
    const runtime::Batch& batch = source.Next();
    program.SetInput(input, batch.images().data(), batch.images().size_bytes());
    program.Run();
    const ir::Tensor logits = program.Read(output);
    predictions.classes = logits.data.size() / batch.weights.size();
    for (size_t i = 0; i < batch.weights.size(); ++i) {
      if (batch.weights[i] == 0) continue;  // padding, or skipped
      predictions.paths.push_back(images.Name(batch.samples[i]));
      const auto row =
          logits.data.begin() + static_cast<long>(i * predictions.classes);
      predictions.logits.insert(predictions.logits.end(), row,
                                row + static_cast<long>(predictions.classes));
    }
  }
  return predictions;
}

// Prints one line per image. Returns the same as JSON.
json Report(const Predictions& predictions, FILE* text) {
  json rows = json::array();
  for (size_t i = 0; i < predictions.paths.size(); ++i) {
    json guesses = json::array();
    fmt::print(text, "{}:", predictions.paths[i]);
    for (const Guess& guess : Best(predictions.Row(i))) {
      const std::string name = predictions.ClassName(guess.label);
      fmt::print(text, "{} {} {:.4f}", guesses.empty() ? "" : ",", name,
                 guess.probability);
      guesses.push_back({{"class", name},
                         {"label", guess.label},
                         {"probability", guess.probability}});
    }
    fmt::print(text, "\n");
    rows.push_back({{"image", predictions.paths[i]}, {"top", guesses}});
  }
  return rows;
}

void RunPredict(const PredictFlags& flags) {
  CheckFed(flags.model, /*labels=*/false);
  const models::CustomModel* custom = CustomOf(flags.model);
  FUSOR_CHECK(custom == nullptr || custom->classifies, kUsage,
              "predict: expected a classifier of images, got {}; use exec to "
              "run it",
              flags.model.arch);
  FILE* text = TextStream({flags.json, flags.logits, flags.compile.dump.to});
  FUSOR_CHECK(flags.logits.empty() || IsCsv(flags.logits) ||
                  flags.logits.ends_with(".safetensors"),
              kUsage, "--logits {}: expected a file .safetensors or .csv",
              flags.logits);
  CheckOutput("--logits", flags.logits);
  CheckOutput("--json", flags.json);
  const auto dumper = OpenDumper(flags.compile.dump);
  auto list = std::make_unique<ImageList>(flags.images);
  const ImageList& images = *list;
  TrainedModel model = OpenTrained(flags.trained, flags.model, flags.compile,
                                   flags.data, nullptr, dumper);
  const auto source = OpenEvaluation(std::move(list), flags.data, flags.model,
                                     model.program->graph());
  const auto start = std::chrono::steady_clock::now();
  const Predictions predictions = Predict(model, *source, images);
  const std::chrono::duration<double> spent =
      std::chrono::steady_clock::now() - start;
  for (const std::string& warning : source->TakeWarnings()) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  if (StopRequested()) return;
  FUSOR_CHECK(!predictions.paths.empty(), kData, "no readable image");
  json out = ProgramJson(*model.program);
  out["needed_bytes"] = model.needed_bytes;
  out.update(DataJson(source->stats(), spent.count()));
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.options.batch;
  out["predictions"] = Report(predictions, text);
  out["images_per_second"] =
      static_cast<double>(predictions.paths.size()) / spent.count();
  WriteLogits(flags.logits, predictions);
  WriteJson(flags.json, out);
}

}  // namespace

void AddPredict(CLI::App& app, Run* run) {
  auto flags = std::make_shared<PredictFlags>();
  CLI::App* command = app.add_subcommand(
      "predict", "Print the five most probable classes of each image");
  command
      ->add_option("IMAGES", flags->images,
                   "Image files, or folders to search recursively")
      ->required()
      ->type_name("PATH")
      ->group("Data");
  AddLoaderFlags(*command, flags->data);
  AddEvaluationFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->option_defaults()->group("Run");
  AddTrainedFlags(*command, flags->trained);
  command
      ->add_option(
          "--logits", flags->logits,
          "Write the logits of all images to FILE (.safetensors or .csv)")
      ->type_name("FILE");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunPredict(*flags); }; });
}

}  // namespace fusor::tools
