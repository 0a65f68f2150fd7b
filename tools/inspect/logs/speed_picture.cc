#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tools/inspect/html/html_page.h"
#include "tools/inspect/logs/speed_log.h"

namespace fusor::inspect {
namespace {

constexpr double kLeft = 60, kTop = 50, kWidth = 640, kHeight = 400;
constexpr const char* kFaint = "stroke=\"#e4e7ee\"";

std::string Colour(size_t series) {
  constexpr const char* kColours[] = {"#2f6bd8", "#e07f2f", "#4f9d69",
                                      "#c74444", "#8a5fc2", "#6b7280"};
  return kColours[series % std::size(kColours)];
}

// Returns a round tick distance for 4 to 10 ticks up to `most`.
double TickOf(double most) {
  const double unit = std::pow(10, std::floor(std::log10(most)) - 1);
  for (const double tick : {unit, 2 * unit, 5 * unit}) {
    if (most / tick <= 10) return tick;
  }
  return 10 * unit;
}

// Plots series of points over two axes, with a legend below.
class Chart {
 public:
  Chart(const std::string& title, size_t series, double highest)
      : svg_(kLeft + kWidth + 30,
             kTop + kHeight + 70 + 18 * static_cast<double>(series)),
        highest_(highest) {
    svg_.Text(kLeft, 26, "start", title, 16);
  }

  double Y(double value) const {
    return kTop + kHeight * (1 - value / highest_);
  }

  void VerticalAxis(const std::string& name) {
    const double step = TickOf(highest_);
    for (double tick = 0; tick <= highest_; tick += step) {
      svg_.Line(kLeft, Y(tick), kLeft + kWidth, Y(tick), kFaint);
      svg_.Text(kLeft - 6, Y(tick) + 4, "end", fmt::format("{:g}", tick));
    }
    svg_.Text(kLeft, kTop - 8, "start", name);
  }

  void HorizontalTick(double x, int64_t value) {
    svg_.Line(x, kTop, x, kTop + kHeight, kFaint);
    svg_.Text(x, kTop + kHeight + 16, "middle", fmt::format("{}", value));
  }

  void HorizontalName(const std::string& name) {
    svg_.Text(kLeft + kWidth / 2, kTop + kHeight + 36, "middle", name);
  }

  struct Point {
    double x, y;
    std::string tooltip, label;
  };
  void Series(const std::vector<Point>& points, const std::string& name) {
    const std::string colour = Colour(series_);
    const double y = kTop + kHeight + 60 + 18 * static_cast<double>(series_++);
    std::vector<std::pair<double, double>> line;
    for (const Point& point : points) {
      line.emplace_back(point.x, point.y);
      svg_.Circle(point.x, point.y, 4, fmt::format("fill=\"{}\"", colour),
                  point.tooltip);
      svg_.Text(point.x, point.y - 10, "middle", point.label);
    }
    svg_.Lines(line, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
    svg_.Rect(kLeft, y - 9, 12, 10, fmt::format("fill=\"{}\"", colour));
    svg_.Text(kLeft + 20, y, "start", name);
  }

  Svg& svg() { return svg_; }
  std::string Finish() const { return svg_.Finish(); }

 private:
  Svg svg_;
  const double highest_;
  size_t series_ = 0;
};

// Plots speedup against one rank over ranks, one series per group.
std::string RanksPicture(const SpeedFolder& folder, const std::string& title) {
  int64_t most = 1;
  double highest = 1;
  for (const SpeedGroup& group : folder.groups) {
    for (const SpeedCase& c : group.cases) {
      most = std::max(most, c.ranks());
      highest =
          std::max(highest, group.Speedup(c, folder.definition).value_or(1));
    }
  }
  highest = std::max(highest, static_cast<double>(most));
  const auto x = [&](double ranks) {
    return kLeft + kWidth * ranks / static_cast<double>(most);
  };
  Chart chart(title, folder.groups.size(), highest);
  chart.VerticalAxis("speedup over 1n1g");
  // A power of two, at least one rank.
  const auto step = static_cast<int64_t>(std::exp2(
      std::max(0.0, std::floor(std::log2(static_cast<double>(most)) - 2))));
  for (int64_t ranks = 0; ranks <= most; ranks += step) {
    chart.HorizontalTick(x(static_cast<double>(ranks)), ranks);
  }
  chart.HorizontalName("ranks");
  chart.svg().Line(x(0), chart.Y(0), x(static_cast<double>(most)),
                   chart.Y(static_cast<double>(most)),
                   "stroke=\"#9aa1b0\" stroke-dasharray=\"6 4\"");
  for (const SpeedGroup& group : folder.groups) {
    std::vector<Chart::Point> points;
    for (const SpeedCase& c : group.cases) {
      const auto speedup = group.Speedup(c, folder.definition);
      if (!speedup) continue;
      points.push_back(
          {x(static_cast<double>(c.ranks())), chart.Y(*speedup),
           fmt::format("{} {}: {:.2f} images/s, {:.2f} x", group.name, c.name(),
                       c.Median(folder.definition), *speedup),
           ""});
    }
    chart.Series(points,
                 fmt::format("{}, batch {}, {}{}", group.model, group.batch,
                             group.precision,
                             points.empty() ? ": 1n1g is missing" : ""));
  }
  return chart.Finish();
}

// Plots speed over batch sizes, one series per model, precision and fusion.
// Labels fused points with the speedup over unfused.
std::string BatchesPicture(const SpeedFolder& folder,
                           const std::string& title) {
  std::set<int64_t> batches;
  std::map<std::pair<std::string, std::string>, std::vector<const SpeedGroup*>>
      series;
  double highest = 0;
  for (const SpeedGroup& group : folder.groups) {
    batches.insert(group.batch);
    series[{group.model, group.precision}].push_back(&group);
    highest = std::max(highest, group.cases.front().Median(folder.definition));
  }
  // Evenly spaced: batch sizes are often powers of two.
  const auto x = [&](int64_t batch) {
    const auto at = std::distance(batches.begin(), batches.find(batch));
    return kLeft + kWidth * (static_cast<double>(at) + 0.5) /
                       static_cast<double>(batches.size());
  };
  Chart chart(title, series.size(), 1.1 * highest);
  chart.VerticalAxis("images/s");
  for (const int64_t batch : batches) chart.HorizontalTick(x(batch), batch);
  chart.HorizontalName("images per step and rank");
  for (auto& [name, groups] : series) {
    std::sort(groups.begin(), groups.end(),
              [](const auto* a, const auto* b) { return a->batch < b->batch; });
    std::vector<Chart::Point> points;
    for (const SpeedGroup* group : groups) {
      const SpeedCase& c = group->cases.front();
      const double speed = c.Median(folder.definition);
      const auto gain = FusionSpeedup(folder, *group, c);
      points.push_back(
          {x(group->batch), chart.Y(speed),
           fmt::format("{} {}: {:.2f} images/s", group->name, c.name(), speed),
           gain ? fmt::format("{:.2f} x unfused", *gain) : ""});
    }
    chart.Series(points, fmt::format("{}, {}", name.first, name.second));
  }
  return chart.Finish();
}

// Returns whether all groups have the same single case, hence no speedup.
bool HasOneCase(const SpeedFolder& folder) {
  std::set<std::string> names;
  for (const SpeedGroup& group : folder.groups) {
    for (const SpeedCase& c : group.cases) names.insert(c.name());
  }
  return names.size() == 1;
}

}  // namespace

std::string SpeedSvg(const SpeedFolder& folder, const std::string& title) {
  return HasOneCase(folder) ? BatchesPicture(folder, title)
                            : RanksPicture(folder, title);
}

}  // namespace fusor::inspect
