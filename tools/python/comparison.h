#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "tools/python/model.h"
#include "tools/python/training_step.h"

namespace fusor::python {

// How fusor.compare measures.
struct ComparisonOptions {
  int rounds = 20;
  int warmup = 3;
  int64_t top = 10;  // differences and rejected fusions to list
};

// Compiles variants of a model, runs them from equal weights on equal inputs
// and compares times, memory and numbers, as `fusor compare` does. `variants`:
// keywords that replace those of `options`, at least two. Inputs without an
// example get random values. Needs the GIL and releases it.
ReportTexts CompareVariants(Model model, std::vector<HostArray> example,
                            const Options& options,
                            const std::vector<nanobind::dict>& variants,
                            const ComparisonOptions& how);

}  // namespace fusor::python
