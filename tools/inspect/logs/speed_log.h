#pragma once

// Parses training speeds from logs of fusor and other frameworks.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::inspect {

// One line about speed. Covers the steps after the first `begin` up to and
// including step `end`, counted from the start of the run.
struct SpeedRecord {
  int64_t begin = 0;
  int64_t end = 0;
  // The printed speed, in the unit of the format; 0: not printed.
  double images_per_second = 0;  // of all ranks
  double rank_images_per_second = 0;
  double step_seconds = 0;
  // Timestamp of the line in seconds, on any clock; -1: not printed.
  double time = -1;
};

// The steps to average: `average` steps after the first `skip`.
struct SpeedWindow {
  int64_t skip = 20;
  int64_t average = 100;

  bool operator==(const SpeedWindow&) const = default;
};

struct SpeedLog {
  std::string format;  // "TensorFlow 2 TimeHistory"
  // The steps that the log reports as measured (`fusor bench`), otherwise those
  // that DLPerf's extractors use for the format.
  SpeedWindow window;
  bool summary = false;  // one line with the framework's own average over a run
  std::vector<SpeedRecord> records;  // by step; ranks are merged
  int64_t overflows = 0;  // updates that NVIDIA Apex reported as skipped
};

// Parses the lines of the format that most lines have. Formats:
//   NVIDIA DLLogger's stdout (PyTorch, TensorFlow) and its JSON; fusor's text,
//   DLLogger and JSON Lines; GluonCV and NVIDIA's MXNet; Paddle 1.8 and later;
//   FleetX; TensorFlow 2's TimeHistory; OneFlow; imagenet_ddp_apex; MindSpore,
//   whose clock is the sum of its epoch times.
// Ignores other lines, and lines with implausible numbers, e.g. two lines
// written into each other. `source` names the log in errors. Throws kData if no
// line has a speed.
SpeedLog ParseSpeedLog(std::string_view text, std::string_view source);

// Returns the names of the formats, for messages.
std::vector<std::string> SpeedLogFormats();

// --- Folders -----------------------------------------------------------------
//
// Logs in the layout of DLPerf, https://github.com/Oneflow-Inc/DLPerf:
//   {nodes}n{gpus}g/{model}_b{batch}_{precision}_{run}.log

// How a speed is computed from a log.
enum class SpeedDefinition : uint8_t {
  kElapsed,  // images / time between two lines
  kMean,     // mean of the speeds in the lines; always a little higher
};
std::string_view DefinitionName(SpeedDefinition definition);  // "elapsed"

struct RunSpeed {
  int64_t run = 0;
  std::string path;
  // Images per second of all ranks, for each definition that the log supports.
  std::optional<double> elapsed, mean;
  int64_t overflows = 0;

  std::optional<double> speed(SpeedDefinition definition) const;
};

struct SpeedCase {
  int64_t nodes = 1;
  int64_t gpus = 1;  // per node
  std::vector<RunSpeed> runs;

  int64_t ranks() const { return nodes * gpus; }
  std::string name() const;  // "4n8g"
  // Returns the median over the runs. A run without a speed of this definition
  // counts as 0.
  double Median(SpeedDefinition definition) const;
  double Average(SpeedDefinition definition) const;
};

// The cases of one model, batch and precision. Speeds of different groups are
// not comparable.
struct SpeedGroup {
  std::string name;  // model, plus batch and precision if ambiguous
  std::string model;
  int64_t batch = 0;  // per rank
  std::string precision;
  std::string format;  // of the logs
  SpeedWindow window;
  bool mixed_windows = false;    // logs differ; `window` is that of one log
  bool summary = false;          // SpeedLog::summary
  std::vector<SpeedCase> cases;  // by ranks, then nodes

  // Returns the median speed / that of 1n1g, both rounded to 2 decimals as
  // DLPerf publishes them; nullopt without 1n1g.
  std::optional<double> Speedup(const SpeedCase& speeds,
                                SpeedDefinition definition) const;
};

struct SpeedFolder {
  std::vector<SpeedGroup> groups;  // by name
  SpeedDefinition definition = SpeedDefinition::kElapsed;
};

// Returns the speed of a case / that of the same case without fusion, whose
// logs `fusor bench --sweep` names PRECISION-unfused. Returns nullopt if there
// is none, and for the unfused case itself.
std::optional<double> FusionSpeedup(const SpeedFolder& folder,
                                    const SpeedGroup& group,
                                    const SpeedCase& speeds);

struct SpeedFolderOptions {
  // Override the log's window: the steps that `fusor bench` reports as
  // measured, or the format's default.
  std::optional<int64_t> skip, average;
  // Default: elapsed if all logs support it, otherwise mean.
  std::optional<SpeedDefinition> definition;
};

// Computes the speed of one log with `batch` images per rank and step. Throws
// kData, naming `source`, if the log is too short for the window.
RunSpeed SpeedOf(const SpeedLog& log, const SpeedWindow& window, int64_t batch,
                 int64_t ranks, const std::string& source);

// Reads a folder. Throws kData if the folder or its logs are missing, a name
// does not match the layout, or a log has no speed, is too short, or has
// another format than its group.
SpeedFolder ReadSpeedFolder(const std::string& folder,
                            const SpeedFolderOptions& options);

// Returns {group: {case: {average_speed, batch_size_per_device, median_speed,
// speedup}}} as DLPerf's extract_*_logs.py do, rounded to 2 decimals. Omits
// speedup without 1n1g. Adds speedup_over_unfused if the case was also measured
// without fusion.
nlohmann::json SpeedJson(const SpeedFolder& folder);

// Returns one table per group, and how its speeds were computed.
std::string SpeedText(const SpeedFolder& folder);

// Returns a plot. With several cases: speedup over ranks, one line per group
// that has 1n1g. With one case: speed over batch sizes, one line per model,
// precision and fusion.
std::string SpeedSvg(const SpeedFolder& folder, const std::string& title);

}  // namespace fusor::inspect
