#include <fmt/core.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/datasets/convert.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/data/datasets/sample_images.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image_writer.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/inspect/report/dataset_report.h"

namespace fusor::tools {
namespace {

namespace fs = std::filesystem;

struct DecodeFlags {
  std::vector<std::string> files;
  std::string out;
};

// Returns the output path of each image. Throws if two paths are equal.
std::vector<std::string> PpmPaths(const DecodeFlags& flags) {
  std::vector<std::string> paths;
  std::map<std::string, std::string> sources;
  for (const std::string& file : flags.files) {
    paths.push_back((fs::path(flags.out) / fs::path(file).stem()).string() +
                    ".ppm");
    const auto [it, added] = sources.emplace(paths.back(), file);
    FUSOR_CHECK(added, kUsage, "{} and {}: both would be written to {}",
                it->second, file, paths.back());
  }
  return paths;
}

void Decode(const DecodeFlags& flags) {
  const std::vector<std::string> paths = PpmPaths(flags);
  MakeFolder("--out", flags.out);
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string& file = flags.files[i];
    ReadFile(file, ErrorCode::kData, bytes);
    const runtime::Image image = runtime::DecodeImage(bytes, file);
    runtime::WritePpm(paths[i], image);
    fmt::print("{}: {}x{} -> {}\n", file, image.width, image.height, paths[i]);
  }
}

struct ConvertFlags {
  std::string source;
  std::string folder;
  std::string format;
  runtime::ConvertOptions options;
};

struct NamedFormat {
  const char* name;
  runtime::OutputFormat format;
};
constexpr NamedFormat kFormats[] = {
    {"pixels", runtime::OutputFormat::kPixels},
    {"jpeg", runtime::OutputFormat::kJpeg},
    {"tfrecord", runtime::OutputFormat::kTfRecord},
    {"recordio", runtime::OutputFormat::kRecordIo},
    {"webdataset", runtime::OutputFormat::kWebDataset},
};

void ConvertSplit(const ConvertFlags& flags, const runtime::ImageSet& images,
                  const std::string& name) {
  runtime::ConvertOptions options = flags.options;
  for (const NamedFormat& known : kFormats) {
    if (known.name == flags.format) options.format = known.format;
  }
  options.stop = StopRequested;
  runtime::ConvertReport report;
  {
    Progress progress(name);
    options.progress = [&](int64_t done) {
      progress.Show(done, images.size());
    };
    report = runtime::Convert(images, flags.folder, name, options);
  }
  fmt::print(
      "{}: {} of {} images in {} files{}\n", name, report.images, images.size(),
      report.files,
      report.kept == 0 ? "" : fmt::format(", {} of them kept", report.kept));
}

struct NamedSet {
  std::string name;  // "data" if the set does not tell splits apart
  std::unique_ptr<runtime::ImageSet> images;
};

// Opens all splits of a set. Prints their warnings.
std::vector<NamedSet> OpenSplits(const std::string& path) {
  const std::vector<runtime::Split> splits = runtime::NamedSplits(path);
  std::vector<NamedSet> sets;
  if (splits.empty()) sets.push_back({"data", runtime::OpenDataset(path, {})});
  for (const runtime::Split split : splits) {
    sets.push_back({split == runtime::Split::kTrain ? "train" : "val",
                    runtime::OpenDataset(path, {.split = split})});
  }
  for (const NamedSet& set : sets) {
    FUSOR_CHECK(set.images->tensors() == nullptr, kUsage,
                "{}: expected images, got tensors", set.images->path());
    for (const std::string& warning : set.images->warnings()) Warn(warning);
  }
  return sets;
}

void ConvertSet(const ConvertFlags& flags) {
  const std::vector<NamedSet> sets = OpenSplits(flags.source);
  MakeFolder("DST", flags.folder);
  for (const NamedSet& set : sets) {
    if (!StopRequested()) ConvertSplit(flags, *set.images, set.name);
  }
}

void AddConvert(CLI::App& data, Run* run) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = data.add_subcommand(
      "convert", "Write a data set in another format, for faster reading");
  command
      ->add_option("SRC", flags->source,
                   "Data set: an image folder, or files of another format")
      ->required()
      ->type_name("PATH");
  command->add_option("DST", flags->folder, "Folder for the files")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--format", flags->format,
                   "Format: pixels or jpeg (fusor's shards), tfrecord, "
                   "recordio, webdataset")
      ->required()
      ->check(OneOf({"pixels", "jpeg", "tfrecord", "recordio", "webdataset"}));
  command
      ->add_option("--size", flags->options.size,
                   "Resize the shorter side of larger images (0: keep it)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 16));
  command
      ->add_option("--quality", flags->options.quality,
                   "JPEG quality of images that are encoded anew")
      ->capture_default_str()
      ->check(WholeNumber(1, 100));
  command
      ->add_option("-j,--workers", flags->options.threads,
                   "Number of threads that encode images")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  command->callback([flags, run] { *run = [flags] { ConvertSet(*flags); }; });
}

struct InspectFlags {
  std::string source;
  int threads = 1;
  std::string json;
  std::string html;
};

void Inspect(const InspectFlags& flags) {
  FILE* text = TextStream({flags.json, flags.html});
  CheckOutput("--json", flags.json);
  CheckOutput("--html", flags.html);
  std::vector<inspect::DatasetReport> reports;
  std::vector<std::string> names;
  nlohmann::json out = nlohmann::json::object();
  for (const NamedSet& set : OpenSplits(flags.source)) {
    constexpr int kPictures = 120;
    {
      Progress progress(set.name);
      reports.push_back(inspect::InspectDataset(
          *set.images,
          {.threads = flags.threads,
           .pictures = flags.html.empty() ? 0 : kPictures,
           .progress =
               [&](int64_t done) { progress.Show(done, set.images->size()); },
           .stop = StopRequested}));
    }
    if (StopRequested()) return;
    names.push_back(set.name);
    fmt::print(text, "{}", inspect::DatasetText(reports.back(), set.name));
    out[set.name] = inspect::DatasetJson(reports.back());
  }
  WriteJson(flags.json, out);
  if (!flags.html.empty()) {
    WriteText(flags.html, inspect::DatasetPage(reports, names));
  }
}

void AddInspect(CLI::App& data, Run* run) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = data.add_subcommand(
      "inspect", "Report classes, sizes and broken images of a data set");
  command
      ->add_option("DATA", flags->source,
                   "Data set: an image folder, or files of another format")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("-j,--workers", flags->threads,
                   "Number of threads that decode images")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  AddJsonFlag(*command, flags->json);
  command
      ->add_option("--html", flags->html,
                   "Write a page with a contact sheet to FILE")
      ->type_name("FILE");
  command->callback([flags, run] { *run = [flags] { Inspect(*flags); }; });
}

}  // namespace

void AddData(CLI::App& app, Run* run) {
  CLI::App* command =
      app.add_subcommand("data", "Inspect and create data sets");
  command->require_subcommand(1);
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* decode = command->add_subcommand(
      "decode", "Write decoded images as PPM files, to check the reader");
  decode->add_option("FILE", flags->files, "JPEG or PNG files")->required();
  decode->add_option("--out", flags->out, "Folder")
      ->required()
      ->type_name("DIR");
  decode->callback([flags, run] { *run = [flags] { Decode(*flags); }; });

  auto out = std::make_shared<std::string>();
  auto options = std::make_shared<runtime::SampleImagesOptions>();
  CLI::App* samples = command->add_subcommand(
      "make-samples", "Create a small data set: JPEG files in five classes");
  samples->add_option("--out", *out, "Folder to create; must not exist")
      ->required()
      ->type_name("DIR");
  samples
      ->add_option("--train-images", options->train_images,
                   "Training images per class")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  samples
      ->add_option("--val-images", options->val_images,
                   "Validation images per class")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  AddConvert(*command, run);
  AddInspect(*command, run);
  samples->callback([out, options, run] {
    *run = [out, options] {
      runtime::WriteSampleImages(*out, *options);
      fmt::print("wrote {}\n", *out);
    };
  });
}

}  // namespace fusor::tools
