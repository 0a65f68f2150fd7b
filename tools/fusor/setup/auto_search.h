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
  // Ordered, such as batch sizes: the search goes on in the direction in which
  // the speed grows, and stops where it does not.
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
  std::optional<AutoSpeed> measured;  // nothing if the model ruled it out
  std::string verdict;                // "default", "faster", "slower", ...
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
// the other dimensions are searched again there. Ends early once `stop` returns
// true, perhaps without any trial. Throws kUsage with the reason
// if the default cannot run.
AutoResult SearchAuto(const std::vector<AutoDimension>& space,
                      const AutoQueries& queries);

// Returns the settings of a point.
std::vector<AutoSetting> SettingsOf(const std::vector<AutoDimension>& space,
                                    const AutoPoint& point);

// Returns a table of the trials, a line each.
std::string AutoTable(const std::vector<AutoDimension>& space,
                      const AutoResult& result);

}  // namespace fusor::tools
