#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/regex.h"
#include "ir/support/statistics.h"
#include "tools/inspect/logs/speed_log.h"

namespace fusor::inspect {
namespace {

namespace fs = std::filesystem;

// Returns the double nearest to the value printed with two decimals.
double Rounded(double value) { return std::stod(fmt::format("{:.2f}", value)); }

struct LogName {
  std::string model;
  int64_t batch = 0;
  std::string precision;
  int64_t run = 0;
};

LogName ParseLogName(const fs::path& path) {
  static const Regex kName(R"((.+)_b(\d{1,9})_(.+)_(\d{1,9})\.log)");
  const std::string name = path.filename().string();
  const auto match = kName.Match(name);
  FUSOR_CHECK(match.has_value(), kData,
              "{}: expected a name like rn50_b128_fp32_1.log, "
              "MODEL_bBATCH_PRECISION_RUN.log",
              path.string());
  return {(*match)[1], std::stoll((*match)[2]), (*match)[3],
          std::stoll((*match)[4])};
}

SpeedCase ParseCaseName(const fs::path& path) {
  static const Regex kName(R"(([1-9]\d{0,5})n([1-9]\d{0,3})g)");
  const std::string name = path.filename().string();
  const auto match = kName.Match(name);
  FUSOR_CHECK(match.has_value(), kData,
              "{}: expected logs in a folder named like 4n8g, NODESnGPUSg",
              path.string());
  return {.nodes = std::stoll((*match)[1]), .gpus = std::stoll((*match)[2])};
}

std::string ReadText(const std::string& path) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kData, bytes);
  return {bytes.begin(), bytes.end()};
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    paths.push_back(it->path());
  }
  FUSOR_CHECK(!error, kData, "{}: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// <folder>/*/*.log
std::vector<fs::path> ListLogs(const fs::path& folder) {
  std::vector<fs::path> logs;
  for (const fs::path& path : Entries(folder)) {
    std::error_code broken;  // a dangling link
    if (!fs::is_directory(path, broken)) continue;
    for (const fs::path& file : Entries(path)) {
      if (file.extension() == ".log") logs.push_back(file);
    }
  }
  FUSOR_CHECK(!logs.empty(), kData,
              "{}: expected logs like 1n1g/rn50_b128_fp32_1.log, found none",
              folder.string());
  return logs;
}

// Returns the lines after the skipped steps that cover window.average steps;
// empty if the log ends before.
std::vector<const SpeedRecord*> Averaged(const SpeedLog& log,
                                         const SpeedWindow& window) {
  std::vector<const SpeedRecord*> records;
  for (const SpeedRecord& record : log.records) {
    if (record.begin < window.skip) continue;
    records.push_back(&record);
    if (record.end - records.front()->begin >= window.average) return records;
  }
  return {};
}

std::optional<double> MeanSpeed(const SpeedLog& log, const SpeedWindow& window,
                                double images, double ranks) {
  if (log.summary) return log.records.back().images_per_second;
  const auto records = Averaged(log, window);
  if (records.empty()) return std::nullopt;
  double sum = 0;
  for (const SpeedRecord* r : records) {
    if (r->step_seconds > 0) {
      sum += images / r->step_seconds;
    } else if (r->rank_images_per_second > 0) {
      sum += r->rank_images_per_second * ranks;
    } else {
      sum += r->images_per_second;
    }
  }
  return sum / static_cast<double>(records.size());
}

std::optional<double> ElapsedSpeed(const SpeedLog& log,
                                   const SpeedWindow& window, double images,
                                   const std::string& source) {
  const SpeedRecord* first = nullptr;
  for (const SpeedRecord& record : log.records) {
    if (record.time < 0 || log.summary || record.end < window.skip) continue;
    if (first == nullptr) first = &record;
    const int64_t steps = record.end - first->end;
    if (steps < window.average) continue;
    const double seconds = record.time - first->time;
    FUSOR_CHECK(seconds > 0, kData,
                "{}: the clock does not advance from step {} to step {}",
                source, first->end, record.end);
    return images * static_cast<double>(steps) / seconds;
  }
  return std::nullopt;
}

void AddLog(const fs::path& path, const SpeedFolderOptions& options,
            std::map<std::tuple<std::string, int64_t, std::string>, SpeedGroup>&
                groups) {
  const LogName name = ParseLogName(path);
  const SpeedCase place = ParseCaseName(path.parent_path());
  const std::string source = path.string();
  const SpeedLog log = ParseSpeedLog(ReadText(source), source);
  SpeedGroup& group = groups[{name.model, name.batch, name.precision}];
  FUSOR_CHECK(group.cases.empty() || group.format == log.format, kData,
              "{}: {} format, but {} format in other logs of {}_b{}_{}", source,
              log.format, group.format, name.model, name.batch, name.precision);
  group.model = name.model;
  group.batch = name.batch;
  group.precision = name.precision;
  group.format = log.format;
  group.summary = log.summary;
  const SpeedWindow window = {options.skip.value_or(log.window.skip),
                              options.average.value_or(log.window.average)};
  group.mixed_windows |= !group.cases.empty() && group.window != window;
  group.window = window;
  auto found = std::find_if(
      group.cases.begin(), group.cases.end(), [&](const SpeedCase& c) {
        return c.nodes == place.nodes && c.gpus == place.gpus;
      });
  if (found == group.cases.end()) {
    found = group.cases.insert(found, place);
  }
  RunSpeed run = SpeedOf(log, group.window, name.batch, place.ranks(), source);
  run.run = name.run;
  found->runs.push_back(std::move(run));
}

// Returns the requested definition, or the first one that all logs support.
SpeedDefinition ChooseDefinition(const std::vector<SpeedGroup>& groups,
                                 std::optional<SpeedDefinition> asked) {
  std::string lacking[2];
  for (const SpeedGroup& group : groups) {
    for (const SpeedCase& c : group.cases) {
      for (const RunSpeed& run : c.runs) {
        if (!run.elapsed) lacking[0] = run.path;
        if (!run.mean) lacking[1] = run.path;
      }
    }
  }
  for (const SpeedDefinition d :
       {SpeedDefinition::kElapsed, SpeedDefinition::kMean}) {
    if (asked.value_or(d) == d && lacking[static_cast<int>(d)].empty()) {
      return d;
    }
  }
  FUSOR_CHECK(asked != SpeedDefinition::kElapsed, kData,
              "{}: too few lines with a time; expected times to compute the "
              "speed by elapsed time",
              lacking[0]);
  FUSOR_CHECK(asked != SpeedDefinition::kMean, kData,
              "{}: too few lines for a mean of their speeds", lacking[1]);
  ThrowError(ErrorCode::kData,
             fmt::format("no definition of speed fits all logs: {} has no "
                         "elapsed times, {} has no speeds to average",
                         lacking[0], lacking[1]));
}

// Names a group after its model if no other group has the same model.
void NameGroups(std::vector<SpeedGroup>& groups) {
  for (SpeedGroup& group : groups) {
    const auto same = std::count_if(
        groups.begin(), groups.end(),
        [&](const SpeedGroup& g) { return g.model == group.model; });
    group.name = same == 1 ? group.model
                           : fmt::format("{}_b{}_{}", group.model, group.batch,
                                         group.precision);
  }
}

}  // namespace

std::string_view DefinitionName(SpeedDefinition definition) {
  return definition == SpeedDefinition::kElapsed ? "elapsed" : "mean";
}

std::optional<double> RunSpeed::speed(SpeedDefinition definition) const {
  return definition == SpeedDefinition::kElapsed ? elapsed : mean;
}

std::string SpeedCase::name() const {
  return fmt::format("{}n{}g", nodes, gpus);
}

double SpeedCase::Median(SpeedDefinition definition) const {
  std::vector<double> speeds;
  for (const RunSpeed& run : runs) {
    speeds.push_back(run.speed(definition).value_or(0));
  }
  return Rounded(fusor::Median(std::move(speeds)));
}

double SpeedCase::Average(SpeedDefinition definition) const {
  double sum = 0;
  for (const RunSpeed& run : runs) sum += run.speed(definition).value_or(0);
  return Rounded(sum / static_cast<double>(runs.size()));
}

std::optional<double> SpeedGroup::Speedup(const SpeedCase& speeds,
                                          SpeedDefinition definition) const {
  for (const SpeedCase& c : cases) {
    if (c.ranks() != 1) continue;
    return Rounded(speeds.Median(definition) / c.Median(definition));
  }
  return std::nullopt;
}

std::optional<double> FusionSpeedup(const SpeedFolder& folder,
                                    const SpeedGroup& group,
                                    const SpeedCase& speeds) {
  for (const SpeedGroup& other : folder.groups) {
    if (other.model != group.model || other.batch != group.batch ||
        other.precision != group.precision + "-unfused") {
      continue;
    }
    for (const SpeedCase& c : other.cases) {
      if (c.nodes != speeds.nodes || c.gpus != speeds.gpus) continue;
      return Rounded(speeds.Median(folder.definition) /
                     c.Median(folder.definition));
    }
  }
  return std::nullopt;
}

RunSpeed SpeedOf(const SpeedLog& log, const SpeedWindow& window, int64_t batch,
                 int64_t ranks, const std::string& source) {
  const auto images = static_cast<double>(batch * ranks);
  RunSpeed run{
      .path = source,
      .elapsed = ElapsedSpeed(log, window, images, source),
      .mean = MeanSpeed(log, window, images, static_cast<double>(ranks)),
      .overflows = log.overflows};
  FUSOR_CHECK(run.elapsed || run.mean, kData,
              "{}: too short: {} lines up to step {}, expected {} steps after "
              "the first {}",
              source, log.format, log.records.back().end, window.average,
              window.skip);
  FUSOR_CHECK(run.elapsed.value_or(1) > 0 && run.mean.value_or(1) > 0, kData,
              "{}: a speed of 0 images/s", source);
  return run;
}

SpeedFolder ReadSpeedFolder(const std::string& folder,
                            const SpeedFolderOptions& options) {
  std::map<std::tuple<std::string, int64_t, std::string>, SpeedGroup> groups;
  for (const fs::path& path : ListLogs(folder)) {
    AddLog(path, options, groups);
  }
  SpeedFolder result;
  for (auto& [key, group] : groups) {
    std::sort(group.cases.begin(), group.cases.end(),
              [](const SpeedCase& a, const SpeedCase& b) {
                return std::pair(a.ranks(), a.nodes) <
                       std::pair(b.ranks(), b.nodes);
              });
    for (SpeedCase& c : group.cases) {
      std::sort(
          c.runs.begin(), c.runs.end(),
          [](const RunSpeed& a, const RunSpeed& b) { return a.run < b.run; });
    }
    result.groups.push_back(std::move(group));
  }
  NameGroups(result.groups);
  result.definition = ChooseDefinition(result.groups, options.definition);
  return result;
}

}  // namespace fusor::inspect
