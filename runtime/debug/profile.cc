#include "runtime/debug/profile.h"

#include <algorithm>

namespace fusor::runtime {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

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
