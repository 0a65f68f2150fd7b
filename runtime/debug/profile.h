#pragma once

#include <vector>

#include "runtime/session.h"

namespace fusor::runtime {

// Median of a few values, the mean of the middle two of an even number; 0 of
// none.
double Median(std::vector<double> values);

// Milliseconds of each step of the plan, each the median of `runs` runs of
// Session::ProfileStep. They are real steps: state changes.
std::vector<double> MedianProfile(Session& session, int program, int runs);

}  // namespace fusor::runtime
