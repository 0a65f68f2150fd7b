#include "tools/inspect/observers/profile.h"

#include <algorithm>

#include "ir/support/statistics.h"

namespace fusor::runtime {

std::vector<double> MedianProfile(Session& session, int program, int runs) {
  std::vector<std::vector<double>> times(session.plan(program).steps.size());
  for (int i = 0; i < runs; ++i) {
    const std::vector<double> run = session.ProfileStep(program);
    for (size_t s = 0; s < times.size(); ++s) times[s].push_back(run[s]);
  }
  std::vector<double> medians;
  for (auto& of_step : times) medians.push_back(Median(std::move(of_step)));
  return medians;
}

}  // namespace fusor::runtime
