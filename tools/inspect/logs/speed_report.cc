#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tools/inspect/logs/speed_log.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

std::string Number(std::optional<double> value) {
  return value ? fmt::format("{:.2f}", *value) : "-";
}

// Describes how the speeds of a group's logs are computed.
std::string HowMeasured(const SpeedGroup& group, SpeedDefinition definition) {
  if (group.summary) return "the average that the framework printed";
  if (group.mixed_windows) return "over the steps that each log measured";
  const int64_t first = group.window.skip;
  const int64_t last = first + group.window.average;
  if (definition == SpeedDefinition::kElapsed) {
    return fmt::format(
        "images divided by the time from the end of step {} to the end of step "
        "{}",
        first, last);
  }
  return fmt::format("mean of the logged speeds of steps {} to {}", first + 1,
                     last);
}

std::optional<double> MedianOf(const SpeedCase& c, SpeedDefinition definition) {
  for (const RunSpeed& run : c.runs) {
    if (!run.speed(definition)) return std::nullopt;
  }
  return c.Median(definition);
}

std::string GroupText(const SpeedGroup& group, SpeedDefinition definition) {
  std::string text =
      fmt::format("{}, batch {} per rank, {} ({} format)\n", group.model,
                  group.batch, group.precision, group.format);
  text += fmt::format("  {:<8}{:>6}{:>12}{:>12}{:>10}{:>12}\n", "case", "runs",
                      "elapsed", "mean", "speedup", "efficiency");
  for (const SpeedCase& c : group.cases) {
    const std::optional<double> speedup = group.Speedup(c, definition);
    text += fmt::format(
        "  {:<8}{:>6}{:>12}{:>12}{:>10}{:>12}\n", c.name(), c.runs.size(),
        Number(MedianOf(c, SpeedDefinition::kElapsed)),
        Number(MedianOf(c, SpeedDefinition::kMean)), Number(speedup),
        speedup ? fmt::format("{:.1f} %",
                              100 * *speedup / static_cast<double>(c.ranks()))
                : "-");
  }
  int64_t overflows = 0;
  for (const SpeedCase& c : group.cases) {
    for (const RunSpeed& run : c.runs) overflows += run.overflows;
  }
  if (overflows > 0) {
    text +=
        fmt::format("  {} updates skipped: gradients overflowed\n", overflows);
  }
  text +=
      fmt::format("  images/s, median of the runs; speedup by \"{}\": {}\n",
                  DefinitionName(definition), HowMeasured(group, definition));
  if (!group.Speedup(group.cases.front(), definition)) {
    text += "  no speedup: 1n1g is missing\n";
  }
  return text;
}

// Returns the speedup by fusion for each pair of cases that differ only in
// fusion; empty without such a pair.
std::string FusionText(const SpeedFolder& folder) {
  std::string text;
  for (const SpeedGroup& group : folder.groups) {
    for (const SpeedCase& c : group.cases) {
      const auto gain = FusionSpeedup(folder, group, c);
      if (!gain) continue;
      text += fmt::format("  {:<24}{:>8}{:>10}  {:<8}{:>8}\n", group.model,
                          group.batch, group.precision, c.name(), Number(gain));
    }
  }
  if (text.empty()) return "";
  return fmt::format(
             "speedup of fused over unfused\n  {:<24}{:>8}{:>10}  {:<8}{:>8}\n",
             "model", "batch", "precision", "case", "speedup") +
         text;
}

}  // namespace

json SpeedJson(const SpeedFolder& folder) {
  json out = json::object();
  for (const SpeedGroup& group : folder.groups) {
    json& cases = out[group.name] = json::object();
    for (const SpeedCase& c : group.cases) {
      json& entry = cases[c.name()];
      entry["average_speed"] = c.Average(folder.definition);
      entry["batch_size_per_device"] = group.batch;
      entry["median_speed"] = c.Median(folder.definition);
      const auto speedup = group.Speedup(c, folder.definition);
      if (speedup) entry["speedup"] = *speedup;
      const auto fused = FusionSpeedup(folder, group, c);
      if (fused) entry["speedup_over_unfused"] = *fused;
    }
  }
  return out;
}

std::string SpeedText(const SpeedFolder& folder) {
  std::string text;
  for (const SpeedGroup& group : folder.groups) {
    text += GroupText(group, folder.definition);
  }
  return text + FusionText(folder);
}

}  // namespace fusor::inspect
