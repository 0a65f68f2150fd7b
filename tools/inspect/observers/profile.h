#pragma once

#include <vector>

#include "runtime/session.h"

namespace fusor::runtime {

// Milliseconds of each step of the plan, each the median of `runs` runs of
// Session::ProfileStep. They are real steps: state changes.
std::vector<double> MedianProfile(Session& session, int program, int runs);

}  // namespace fusor::runtime
