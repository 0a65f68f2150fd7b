#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/logs/speed_log.h"

namespace fusor::tools {
namespace {

struct ReportFlags {
  std::string folder;
  int64_t skip = -1;
  int64_t average = -1;
  std::string definition = "auto";
  std::string svg;
  std::string json;
};

void RunReport(const ReportFlags& flags) {
  FILE* text = TextStream({flags.svg, flags.json});
  CheckOutput("--svg", flags.svg);
  CheckOutput("--json", flags.json);
  inspect::SpeedFolderOptions options;
  if (flags.skip >= 0) options.skip = flags.skip;
  if (flags.average >= 0) options.average = flags.average;
  if (flags.definition != "auto") {
    options.definition = flags.definition == "elapsed"
                             ? inspect::SpeedDefinition::kElapsed
                             : inspect::SpeedDefinition::kMean;
  }
  const inspect::SpeedFolder folder =
      inspect::ReadSpeedFolder(flags.folder, options);
  fmt::print(text, "{}", inspect::SpeedText(folder));
  // The last path component, with or without a trailing slash.
  const auto path = std::filesystem::path(flags.folder) / "";
  WriteText(flags.svg,
            inspect::SpeedSvg(folder, path.parent_path().filename().string()));
  WriteJson(flags.json, inspect::SpeedJson(folder));
}

}  // namespace

void AddReport(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = app.add_subcommand(
      "report", "Compute speeds and speedups from training logs");
  command
      ->add_option("LOG_DIR", flags->folder,
                   "Folder of logs, NODESnGPUSg/MODEL_bBATCH_PRECISION_RUN.log")
      ->required()
      ->type_name("");
  command
      ->add_option("--skip", flags->skip,
                   "Number of first steps to skip (default: --warmup of bench "
                   "logs; TensorFlow 2: 100; others: 20)")
      ->check(WholeNumber(0, 1 << 30));
  command
      ->add_option("--average", flags->average,
                   "Number of next steps to average (default: --iterations of "
                   "bench logs; TensorFlow 2: 500; others: 100)")
      ->check(WholeNumber(1, 1 << 30));
  command
      ->add_option("--definition", flags->definition,
                   "Speed by elapsed time or mean of logged speeds: elapsed, "
                   "mean or auto")
      ->capture_default_str()
      ->check(OneOf({"auto", "elapsed", "mean"}));
  command
      ->add_option(
          "--svg", flags->svg,
          "Write a chart of speedup over ranks or speed over batch sizes (SVG)")
      ->type_name("FILE");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunReport(*flags); }; });
}

}  // namespace fusor::tools
