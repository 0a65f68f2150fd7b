#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fusor::tools {

// A flag and its value; "" for a flag without one: {"--amp", ""}.
using AutoSetting = std::pair<std::string, std::string>;

// A setting to search, with its possible choices. The first one is the default.
struct AutoDimension {
  std::string name;  // "precision"
  std::vector<std::string> labels;
  std::vector<std::vector<AutoSetting>> choices;  // one per label
  // Whether the choices are ordered, such as batch sizes. The search then
  // proceeds up and down from the best choice, until the speed drops clearly.
  bool ordered = false;
  size_t start = 0;
  bool last = false;  // searched once, after all others
};

// One choice per dimension, by index.
using AutoPoint = std::vector<size_t>;

// Images per second; nothing, with the reason, if the point cannot run.
struct AutoSpeed {
  double images_per_s = 0;
  std::string failure;
};

struct AutoTrial {
  AutoPoint point;
  AutoSpeed modelled;
  // The fastest measurement, because disturbances only slow down; nothing if
  // the model ruled it out.
  std::optional<AutoSpeed> measured;
  int measurements = 0;
  std::string verdict;  // "default", "1.09x the default", "no time left", ...

  // Whether a measurement succeeded.
  bool ran() const { return measured.has_value() && measured->failure.empty(); }
};

struct AutoResult {
  std::vector<AutoTrial> trials;  // in order
  size_t best = 0;                // index of a measured trial
};

struct AutoQueries {
  std::function<AutoSpeed(const AutoPoint&)> model;
  std::function<AutoSpeed(const AutoPoint&)> measure;
  std::function<double()> seconds_left;
  std::function<bool()> stop;
};

// Searches the fastest point, one dimension after another, from the default on.
// Measures a choice only if the model does not find it much slower than the
// best so far, and only as long as time is left. If another batch size wins,
// the other dimensions are searched again there. Uses up to a third of the time
// to measure the fastest choices again, in turn. Of choices that differ by no
// more than 2 %, the model's fastest wins. Ends early once `stop` returns
// true, perhaps without any trial. Throws kUsage with the reason if the default
// cannot run.
AutoResult SearchAuto(const std::vector<AutoDimension>& space,
                      const AutoQueries& queries);

// Returns the settings of a point.
std::vector<AutoSetting> SettingsOf(const std::vector<AutoDimension>& space,
                                    const AutoPoint& point);

// Returns a table of the trials, a line each.
std::string AutoTable(const std::vector<AutoDimension>& space,
                      const AutoResult& result);

}  // namespace fusor::tools
