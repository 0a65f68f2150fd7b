#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace fusor::testing {

// Returns Pearson's chi-squared statistic of the counts, divided by its
// quantile of 1 - 1e-6: above 1, the counts are not from this distribution.
// `shares` are the expected shares, which add up to 1; empty: all equal.
inline double ChiSquaredRatio(const std::vector<int64_t>& counts,
                              std::vector<double> shares = {}) {
  const auto bins = static_cast<double>(counts.size());
  if (shares.empty()) shares.assign(counts.size(), 1 / bins);
  const auto total = static_cast<double>(
      std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * shares[i];
    const double error = static_cast<double>(counts[i]) - expected;
    statistic += error * error / expected;
  }
  // Wilson and Hilferty's approximation of the quantile.
  const double freedom = bins - 1;
  constexpr double kNormalQuantile = 4.753424;
  const double deviation = 2 / (9 * freedom);
  const double quantile =
      freedom *
      std::pow(1 - deviation + kNormalQuantile * std::sqrt(deviation), 3);
  return statistic / quantile;
}

// Returns the number of values in each of `bins` equal parts of [low, high).
inline std::vector<int64_t> CountInBins(const std::vector<double>& values,
                                        double low, double high, int bins) {
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (const double value : values) {
    const double share = (value - low) / (high - low);
    if (share < 0 || share >= 1) return std::vector<int64_t>(counts.size(), 0);
    ++counts[static_cast<size_t>(share * bins)];
  }
  return counts;
}

}  // namespace fusor::testing
