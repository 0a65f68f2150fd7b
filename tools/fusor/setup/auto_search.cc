#include "tools/fusor/setup/auto_search.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ir/support/error.h"

namespace fusor::tools {
namespace {

// The model is trusted to tell choices apart that differ by more than this.
constexpr double kModelTrust = 1.5;
// A choice must be faster than the default by this much.
constexpr double kGain = 1.01;
// Measurements vary. The search over sizes goes past a choice that is slower by
// no more than this.
constexpr double kPatience = 1.15;
constexpr double kNextSize =
    2;  // of an ordered dimension, relative to the last
// Choices that are slower by no more than this are measured again: in the first
// round, at a new size, and once they were measured twice.
constexpr double kFirstRound = 1.3;
constexpr double kLaterRounds = 1.1;
constexpr size_t kRepeated = 6;  // at most so many choices
constexpr int kRounds = 4;
// Measurements that differ by no more than this do not tell which choice is
// faster. The model decides.
constexpr double kTie = 1.02;
constexpr double kRepeatShare = 0.35;  // of the time

class PointSearch {
 public:
  PointSearch(const std::vector<AutoDimension>& space,
              const AutoQueries& queries)
      : space_(space), queries_(queries) {}

  AutoResult Run() {
    kept_ = kRepeatShare * queries_.seconds_left();
    AutoPoint start;
    for (const AutoDimension& dimension : space_) {
      start.push_back(dimension.start);
    }
    Try(start);
    if (queries_.stop()) return std::move(result_);
    const AutoTrial& first = result_.trials[0];
    FUSOR_CHECK(first.ran(), kUsage,
                "--auto: the default cannot be measured: {}",
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
    for (int round = 0; round < kRounds && Repeat(round); ++round) {
    }
    BreakTie();
    if (Speed(result_.best) <= kGain * Speed(0)) result_.best = 0;
    for (AutoTrial& trial : result_.trials) {
      if (trial.ran() && &trial != &result_.trials[0]) {
        trial.verdict = fmt::format("{:.2f}x the default",
                                    trial.measured->images_per_s / Speed(0));
      }
    }
    return std::move(result_);
  }

 private:
  const AutoTrial& Best() const { return result_.trials[result_.best]; }

  void Choose(size_t d) {
    for (size_t c = 0; c < space_[d].choices.size(); ++c) {
      if (slow_.contains({d, c})) continue;
      AutoPoint point = Best().point;
      point[d] = c;
      const AutoTrial* trial = Try(point);
      if (trial != nullptr && trial->ran() &&
          trial->measured->images_per_s * kFirstRound < Speed(result_.best)) {
        slow_.emplace(d, c);
      }
    }
  }

  void Climb(size_t d) {
    const AutoPoint from = Best().point;
    for (const int step : {1, -1}) {
      AutoPoint point = from;
      for (;;) {
        const bool at_end =
            step > 0 ? point[d] + 1 == space_[d].choices.size() : point[d] == 0;
        if (at_end) break;
        point[d] += step;
        // A larger batch takes longer, at most in proportion.
        const AutoTrial* trial = Try(point, step > 0 ? kNextSize : 1);
        if (trial == nullptr || !trial->ran() || IsMuchSlower(*trial)) break;
      }
    }
  }

  bool IsMuchSlower(const AutoTrial& trial) const {
    return trial.measured->images_per_s * kPatience < Speed(result_.best);
  }

  // Measures a trial that ran once more, if there is time. More measurements
  // are faster.
  void MeasureAgain(size_t index) {
    if (queries_.stop() || queries_.seconds_left() - Kept() < seconds_[index]) {
      return;
    }
    AddMeasurement(result_.trials[index],
                   queries_.measure(result_.trials[index].point));
  }

  static void AddMeasurement(AutoTrial& trial, const AutoSpeed& measured) {
    ++trial.measurements;
    trial.measured->images_per_s =
        std::max(trial.measured->images_per_s, measured.images_per_s);
  }

  // Seconds that are kept to measure choices again. Time is kept only if it
  // suffices for two of them.
  double Kept() const { return 2 * last_ <= kept_ ? kept_ : 0; }

  // Images per second of a trial that ran.
  double Speed(size_t trial) const {
    return result_.trials[trial].measured->images_per_s;
  }

  // Tries a point unless it was tried. Returns its trial; null after a stop.
  // `growth` is the time that its measurement may take, relative to the last.
  const AutoTrial* Try(const AutoPoint& point, double growth = 1) {
    for (const AutoTrial& trial : result_.trials) {
      if (trial.point == point) return &trial;
    }
    if (queries_.stop()) return nullptr;
    AutoTrial trial{point, queries_.model(point), std::nullopt, 0, ""};
    Measure(trial, growth);
    result_.trials.push_back(std::move(trial));
    // The first measurement of the last dimension may include preparation.
    seconds_.push_back(IsLast(point) ? seconds_[result_.best] : last_);
    const size_t added = result_.trials.size() - 1;
    const AutoTrial& last = result_.trials[added];
    if (!last.ran()) return &last;
    // Something disturbed the measurement if the model expects a faster step.
    if (IsMuchSlower(last) &&
        last.modelled.images_per_s >= Best().modelled.images_per_s) {
      MeasureAgain(added);
    }
    if (Speed(added) > Speed(result_.best)) result_.best = added;
    return &last;
  }

  // Whether the point is not the default in a dimension that comes last.
  bool IsLast(const AutoPoint& point) const {
    for (size_t d = 0; d < space_.size(); ++d) {
      if (space_[d].last && point[d] != space_[d].start) return true;
    }
    return false;
  }

  void Measure(AutoTrial& trial, double growth) {
    const bool first = result_.trials.empty();
    if (!trial.modelled.failure.empty()) {
      trial.verdict = trial.modelled.failure;
      return;
    }
    if (!first && trial.modelled.images_per_s * kModelTrust <
                      Best().modelled.images_per_s) {
      trial.verdict = fmt::format(
          "modelled {:.1f}x slower",
          Best().modelled.images_per_s / trial.modelled.images_per_s);
      return;
    }
    const double left = queries_.seconds_left();
    if (!first && left - Kept() < growth * last_) {
      trial.verdict = "no time left";
      return;
    }
    trial.measured = queries_.measure(trial.point);
    trial.measurements = 1;
    last_ = left - queries_.seconds_left();
    trial.verdict = first ? "default" : trial.measured->failure;
  }

  // Measures the fastest choices once more, as many as there is time for.
  bool Repeat(int round) {
    const double close = round == 0 ? kFirstRound : kLaterRounds;
    std::vector<size_t> fastest;
    for (size_t i = 0; i < result_.trials.size(); ++i) {
      if (result_.trials[i].ran() && Speed(i) * close >= Speed(result_.best)) {
        fastest.push_back(i);
      }
    }
    std::stable_sort(fastest.begin(), fastest.end(),
                     [&](size_t a, size_t b) { return Speed(a) > Speed(b); });
    double left = queries_.seconds_left();
    size_t count = 0;
    while (count < std::min(fastest.size(), kRepeated) &&
           left >= seconds_[fastest[count]]) {
      left -= seconds_[fastest[count++]];
    }
    if (count < 2) return false;
    fastest.resize(count);
    std::vector<AutoSpeed> speeds;
    for (const size_t i : fastest) {
      if (queries_.stop()) return false;
      speeds.push_back(queries_.measure(result_.trials[i].point));
    }
    // All of them are measured equally often.
    for (size_t i = 0; i < fastest.size(); ++i) {
      AddMeasurement(result_.trials[fastest[i]], speeds[i]);
    }
    for (const size_t i : fastest) {
      if (Speed(i) > Speed(result_.best)) result_.best = i;
    }
    return true;
  }

  void BreakTie() {
    const double least = Speed(result_.best) / kTie;
    for (size_t i = 0; i < result_.trials.size(); ++i) {
      const AutoTrial& trial = result_.trials[i];
      if (trial.ran() && Speed(i) >= least &&
          trial.modelled.images_per_s > Best().modelled.images_per_s) {
        result_.best = i;
      }
    }
  }

  const std::vector<AutoDimension>& space_;
  const AutoQueries& queries_;
  AutoResult result_;
  std::set<std::pair<size_t, size_t>> slow_;  // choices of dimensions
  std::vector<double> seconds_;               // of a measurement, by trial
  double last_ = 0;                           // of the last measurement
  double kept_ = 0;                           // to measure again
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
  text += fmt::format(" {:>12} {:>12} {:>5}\n", "modelled", "images/s", "runs");
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
        fmt::format(" {:>12} {:>12} {:>5}  {}\n", speed(trial.modelled),
                    trial.measured.has_value() ? speed(*trial.measured) : "-",
                    trial.measurements, trial.verdict);
  }
  return text;
}

}  // namespace fusor::tools
