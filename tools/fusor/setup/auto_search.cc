#include "tools/fusor/setup/auto_search.h"

#include <fmt/core.h>

#include <algorithm>

#include "ir/support/error.h"

namespace fusor::tools {
namespace {

// The model is trusted to tell choices apart that differ by more than this.
constexpr double kModelTrust = 1.5;
// A choice must be faster by this much, because measurements vary.
constexpr double kGain = 1.01;

class PointSearch {
 public:
  PointSearch(const std::vector<AutoDimension>& space,
              const AutoQueries& queries)
      : space_(space), queries_(queries) {}

  AutoResult Run() {
    AutoPoint start;
    for (const AutoDimension& dimension : space_) {
      start.push_back(dimension.start);
    }
    Try(start);
    if (queries_.stop()) return std::move(result_);
    const AutoTrial& first = result_.trials[0];
    FUSOR_CHECK(first.measured.has_value() && first.measured->failure.empty(),
                kUsage, "--auto: the default cannot be measured: {}",
                first.measured.has_value() ? first.measured->failure
                                           : first.modelled.failure);
    // Unordered dimensions again, once a batch size has won.
    for (int round = 0; round < 2; ++round) {
      const AutoPoint before = Best().point;
      for (size_t d = 0; d < space_.size(); ++d) {
        if (!space_[d].ordered && !space_[d].last) Choose(d);
      }
      for (size_t d = 0; d < space_.size(); ++d) {
        if (space_[d].ordered) Climb(d);
      }
      if (Best().point == before) break;
    }
    for (size_t d = 0; d < space_.size(); ++d) {
      if (space_[d].last) Choose(d);
    }
    return std::move(result_);
  }

 private:
  const AutoTrial& Best() const { return result_.trials[result_.best]; }

  void Choose(size_t d) {
    for (size_t c = 0; c < space_[d].choices.size(); ++c) {
      AutoPoint point = Best().point;
      point[d] = c;
      Try(point);
    }
  }

  // Goes up while the speed grows, otherwise down.
  void Climb(size_t d) {
    for (const int step : {1, -1}) {
      bool moved = false;
      for (;;) {
        AutoPoint point = Best().point;
        const bool at_end =
            step > 0 ? point[d] + 1 == space_[d].choices.size() : point[d] == 0;
        if (at_end) break;
        point[d] += step;
        if (!Try(point)) break;
        moved = true;
      }
      if (moved) return;
    }
  }

  // Returns whether the point is the new best one. Points are tried once.
  bool Try(const AutoPoint& point) {
    const auto known = [&](const AutoTrial& t) { return t.point == point; };
    if (std::any_of(result_.trials.begin(), result_.trials.end(), known)) {
      return false;
    }
    if (queries_.stop()) return false;
    AutoTrial trial{point, queries_.model(point), std::nullopt, ""};
    const bool first = result_.trials.empty();
    const bool faster = Measure(first, trial);
    result_.trials.push_back(std::move(trial));
    if (faster) result_.best = result_.trials.size() - 1;
    return faster;
  }

  bool Measure(bool first, AutoTrial& trial) {
    if (!trial.modelled.failure.empty()) {
      trial.verdict = trial.modelled.failure;
      return false;
    }
    if (!first && trial.modelled.images_per_s * kModelTrust <
                      Best().modelled.images_per_s) {
      trial.verdict = fmt::format(
          "modelled {:.1f}x slower",
          Best().modelled.images_per_s / trial.modelled.images_per_s);
      return false;
    }
    const double left = queries_.seconds_left();
    if (!first && left < last_) {
      trial.verdict = "no time left";
      return false;
    }
    trial.measured = queries_.measure(trial.point);
    last_ = left - queries_.seconds_left();
    if (!trial.measured->failure.empty()) {
      trial.verdict = trial.measured->failure;
      return false;
    }
    if (first) {
      trial.verdict = "default";
      return false;
    }
    const double ratio =
        trial.measured->images_per_s / Best().measured.value().images_per_s;
    trial.verdict = ratio > kGain ? fmt::format("{:.2f}x faster", ratio)
                    : ratio < 1 / kGain
                        ? fmt::format("{:.2f}x slower", 1 / ratio)
                        : "the same";
    return ratio > kGain;
  }

  const std::vector<AutoDimension>& space_;
  const AutoQueries& queries_;
  AutoResult result_;
  double last_ = 0;  // seconds of the last measurement
};

}  // namespace

AutoResult SearchAuto(const std::vector<AutoDimension>& space,
                      const AutoQueries& queries) {
  return PointSearch(space, queries).Run();
}

std::vector<AutoSetting> SettingsOf(const std::vector<AutoDimension>& space,
                                    const AutoPoint& point) {
  std::vector<AutoSetting> settings;
  for (size_t d = 0; d < space.size(); ++d) {
    const auto& choice = space[d].choices[point[d]];
    settings.insert(settings.end(), choice.begin(), choice.end());
  }
  return settings;
}

std::string AutoTable(const std::vector<AutoDimension>& space,
                      const AutoResult& result) {
  std::string text = " ";
  for (const AutoDimension& dimension : space) {
    text += fmt::format(" {:>10}", dimension.name);
  }
  text += fmt::format(" {:>12} {:>12}\n", "modelled", "images/s");
  for (size_t i = 0; i < result.trials.size(); ++i) {
    const AutoTrial& trial = result.trials[i];
    text += i == result.best ? "*" : " ";
    for (size_t d = 0; d < space.size(); ++d) {
      text += fmt::format(" {:>10}", space[d].labels[trial.point[d]]);
    }
    const auto speed = [](const AutoSpeed& s) {
      return s.failure.empty() ? fmt::format("{:.2f}", s.images_per_s) : "-";
    };
    text +=
        fmt::format(" {:>12} {:>12}  {}\n", speed(trial.modelled),
                    trial.measured.has_value() ? speed(*trial.measured) : "-",
                    trial.verdict);
  }
  return text;
}

}  // namespace fusor::tools
