#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ir/support/svg.h"
#include "runtime/report/speed_folder.h"

namespace fusor::runtime {
namespace {

using nlohmann::json;

std::string Number(std::optional<double> value) {
  return value ? fmt::format("{:.2f}", *value) : "-";
}

// How the speed of a group's logs is made.
std::string HowMeasured(const SpeedGroup& group, SpeedDefinition definition) {
  if (group.summary) return "the average that the framework printed";
  const int64_t first = group.window.skip;
  const int64_t last = first + group.window.average;
  if (definition == SpeedDefinition::kElapsed) {
    return fmt::format(
        "images over the time from the end of step {} to the "
        "end of step {}",
        first, last);
  }
  return fmt::format(
      "mean of the speeds that the lines of steps {} to {} "
      "tell",
      first + 1, last);
}

std::optional<double> MedianOf(const SpeedCase& c, SpeedDefinition definition) {
  for (const RunSpeed& run : c.runs) {
    if (!run.speed(definition)) return std::nullopt;
  }
  return c.Median(definition);
}

std::string GroupText(const SpeedGroup& group, SpeedDefinition definition) {
  std::string text =
      fmt::format("{}, batch {} a rank, {} ({} lines)\n", group.model,
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
    text += fmt::format("  {} updates were skipped: gradients overflowed\n",
                        overflows);
  }
  text +=
      fmt::format("  images/s, median of the runs; speedup by \"{}\": {}\n",
                  DefinitionName(definition), HowMeasured(group, definition));
  if (!group.Speedup(group.cases.front(), definition)) {
    text += "  no speedup: there is no case 1n1g\n";
  }
  return text;
}

constexpr double kLeft = 60, kTop = 50, kWidth = 640, kHeight = 400;

class SpeedupPicture {
 public:
  SpeedupPicture(const SpeedFolder& folder, const std::string& title)
      : folder_(folder) {
    for (const SpeedGroup& group : folder.groups) {
      for (const SpeedCase& c : group.cases) {
        most_ = std::max(most_, static_cast<double>(c.ranks()));
        const auto speedup = group.Speedup(c, folder.definition);
        highest_ = std::max(highest_, speedup.value_or(1));
      }
    }
    highest_ = std::max(highest_, most_);
    svg_.Text(kLeft, 26, "start", title, 16);
  }

  std::string Draw() {
    Axes();
    size_t index = 0;
    for (const SpeedGroup& group : folder_.groups) DrawGroup(group, index++);
    return svg_.Finish();
  }

 private:
  double X(double ranks) const { return kLeft + kWidth * ranks / most_; }
  double Y(double speedup) const {
    return kTop + kHeight * (1 - speedup / highest_);
  }

  void Axes() {
    constexpr const char* kFaint = "stroke=\"#e4e7ee\"";
    const double step = std::exp2(std::floor(std::log2(highest_) - 2));
    for (double tick = 0; tick <= highest_; tick += step) {
      svg_.Line(kLeft, Y(tick), kLeft + kWidth, Y(tick), kFaint);
      svg_.Text(kLeft - 6, Y(tick) + 4, "end", fmt::format("{:g}", tick));
      if (tick > most_) continue;
      svg_.Line(X(tick), kTop, X(tick), kTop + kHeight, kFaint);
      svg_.Text(X(tick), kTop + kHeight + 16, "middle",
                fmt::format("{:g}", tick));
    }
    svg_.Text(kLeft + kWidth / 2, kTop + kHeight + 36, "middle", "ranks");
    svg_.Text(kLeft, kTop - 8, "start", "speedup against 1n1g");
    svg_.Line(X(0), Y(0), X(most_), Y(most_),
              "stroke=\"#9aa1b0\" stroke-dasharray=\"6 4\"");
  }

  void DrawGroup(const SpeedGroup& group, size_t index) {
    constexpr const char* kColours[] = {"#2f6bd8", "#e07f2f", "#4f9d69",
                                        "#c74444", "#8a5fc2", "#6b7280"};
    const char* colour = kColours[index % std::size(kColours)];
    const double y = kTop + kHeight + 60 + 18 * static_cast<double>(index);
    std::vector<std::pair<double, double>> points;
    for (const SpeedCase& c : group.cases) {
      const auto speedup = group.Speedup(c, folder_.definition);
      if (!speedup) continue;
      points.emplace_back(X(static_cast<double>(c.ranks())), Y(*speedup));
      svg_.Circle(
          points.back().first, points.back().second, 4,
          fmt::format("fill=\"{}\"", colour),
          fmt::format("{} {}: {:.2f} images/s, {:.2f} x", group.name, c.name(),
                      c.Median(folder_.definition), *speedup));
    }
    svg_.Lines(points, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
    svg_.Rect(kLeft, y - 9, 12, 10, fmt::format("fill=\"{}\"", colour));
    svg_.Text(
        kLeft + 20, y, "start",
        fmt::format("{}, batch {}, {}{}", group.model, group.batch,
                    group.precision, points.empty() ? ": no case 1n1g" : ""));
  }

  const SpeedFolder& folder_;
  double most_ = 1, highest_ = 1;
  Svg svg_{
      kLeft + kWidth + 30,
      kTop + kHeight + 70 + 18 * static_cast<double>(folder_.groups.size())};
};

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
    }
  }
  return out;
}

std::string SpeedText(const SpeedFolder& folder) {
  std::string text;
  for (const SpeedGroup& group : folder.groups) {
    text += GroupText(group, folder.definition);
  }
  return text;
}

std::string SpeedupSvg(const SpeedFolder& folder, const std::string& title) {
  return SpeedupPicture(folder, title).Draw();
}

}  // namespace fusor::runtime
