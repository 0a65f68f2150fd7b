#pragma once

// Folders of logs in the layout that DLPerf publishes,
//   {nodes}n{gpus}g/{model}_b{batch}_{precision}_{run}.log
// and the speeds that they tell.
// https://github.com/Oneflow-Inc/DLPerf

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/inspect/logs/speed_log.h"

namespace fusor::runtime {

// How a speed is made of a log.
enum class SpeedDefinition : uint8_t {
  kElapsed,  // images over the time between two lines
  kMean,     // mean of the speeds that the lines tell; always a little higher
};
std::string_view DefinitionName(SpeedDefinition definition);  // "elapsed"

struct RunSpeed {
  int64_t run = 0;
  std::string path;
  // Images a second of all ranks, of each definition that the log allows.
  std::optional<double> elapsed, mean;
  int64_t overflows = 0;

  std::optional<double> speed(SpeedDefinition definition) const;
};

struct SpeedCase {
  int64_t nodes = 1;
  int64_t gpus = 1;  // of a node
  std::vector<RunSpeed> runs;

  int64_t ranks() const { return nodes * gpus; }
  std::string name() const;  // "4n8g"
  // 0 where a run has none by this definition.
  double Median(SpeedDefinition definition) const;
  double Average(SpeedDefinition definition) const;
};

// The cases of one model, batch and precision; speeds of others do not compare.
struct SpeedGroup {
  std::string name;  // the model; with the rest, where a folder has several
  std::string model;
  int64_t batch = 0;  // of a rank
  std::string precision;
  std::string format;  // of the logs
  SpeedWindow window;
  bool mixed_windows = false;    // `window` is that of one of the logs
  bool summary = false;          // SpeedLog::summary
  std::vector<SpeedCase> cases;  // by ranks, then nodes

  // Median over that of 1n1g, both rounded as published; nothing without 1n1g.
  std::optional<double> Speedup(const SpeedCase& speeds,
                                SpeedDefinition definition) const;
};

struct SpeedFolder {
  std::vector<SpeedGroup> groups;  // by name
  SpeedDefinition definition = SpeedDefinition::kElapsed;
};

// Returns the speed of a case over that of the same case without fusion, whose
// logs `fusor bench --sweep` names PRECISION-unfused; nothing without it, and
// for that case itself.
std::optional<double> FusionSpeedup(const SpeedFolder& folder,
                                    const SpeedGroup& group,
                                    const SpeedCase& speeds);

struct SpeedFolderOptions {
  // In place of the log's own: the steps that `fusor bench` says it measured,
  // or the format's.
  std::optional<int64_t> skip, average;
  // Nothing: elapsed where all logs allow it, else the mean.
  std::optional<SpeedDefinition> definition;
};

// Speed of one log of so many images a step. Throws kData, naming `source`,
// where the log is too short for the window.
RunSpeed SpeedOf(const SpeedLog& log, const SpeedWindow& window, int64_t batch,
                 int64_t ranks, const std::string& source);

// Throws kData: no folder, no logs, a name that is not of the layout, a log
// that tells no speed, that is too short, or of another format than its group.
SpeedFolder ReadSpeedFolder(const std::string& folder,
                            const SpeedFolderOptions& options);

// {group: {case: {average_speed, batch_size_per_device, median_speed,
// speedup}}}, as DLPerf's extract_*_logs.py write it, rounded to 2 decimals;
// without speedup where 1n1g is missing. With speedup_over_unfused if the same
// was measured without fusion.
nlohmann::json SpeedJson(const SpeedFolder& folder);

// A table a group, and how its speeds were made.
std::string SpeedText(const SpeedFolder& folder);

// A picture. Of several numbers of ranks: speedup over ranks, a line per group
// that has 1n1g. Of one: speed over batch sizes, a line per model, precision
// and fusion.
std::string SpeedSvg(const SpeedFolder& folder, const std::string& title);

}  // namespace fusor::runtime
