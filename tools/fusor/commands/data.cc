#include <fmt/core.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/datasets/sample_images.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image_writer.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/session_setup.h"

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
  samples->callback([out, options, run] {
    *run = [out, options] {
      runtime::WriteSampleImages(*out, *options);
      fmt::print("wrote {}\n", *out);
    };
  });
}

}  // namespace fusor::tools
