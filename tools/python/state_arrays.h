#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "runtime/state_store.h"

namespace fusor::python {

// Return the names of parameters and running statistics, and numpy arrays of
// their values, float32, by name. If parameters are sharded, all ranks must
// call the latter.
std::vector<std::string> StateNames(const runtime::StateStore& state);
nanobind::dict StateArrays(runtime::StateStore& state);

}  // namespace fusor::python
