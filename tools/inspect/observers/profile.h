#pragma once

#include <vector>

#include "runtime/session.h"

namespace fusor::runtime {

// Returns the time of each step of the plan in ms, the median of `runs` calls
// of Session::ProfileStep. They are real steps: state changes.
std::vector<double> MedianProfile(Session& session, int program, int runs);

}  // namespace fusor::runtime
