#pragma once

#include <vector>

#include "runtime/data/batch_source.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/inspect/compare/compare.h"

namespace fusor::tools {

// Returns the inputs of a training step except state, by name. Data inputs get
// random values.
inspect::InputBytes InputsOf(const ir::Graph& model, double lr);
// The same, with the batch's images and labels if the model has such inputs.
inspect::InputBytes InputsOf(const ir::Graph& model,
                             const runtime::Batch& batch, double lr);

// Returns the time of each step of the plan in ms, on synthetic data.
// Initialises the state, then runs real steps of the program.
std::vector<double> ProfileSynthetic(const ModelFlags& model,
                                     runtime::Session& session,
                                     runtime::Program& program);

}  // namespace fusor::tools
