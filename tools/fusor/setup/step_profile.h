#pragma once

#include <vector>

#include "runtime/data/batch_source.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/inspect/compare/compare.h"

namespace fusor::tools {

// What a training step of the model reads besides its state, by input name.
// Data inputs of a module that are no images and labels get random values.
runtime::InputBytes InputsOf(const ir::Graph& model,
                             const runtime::Batch& batch, double lr);

// Milliseconds of each step of the plan, on synthetic data. They are real
// steps of the program, whose state is initialized first.
std::vector<double> ProfileSynthetic(const ModelFlags& model,
                                     runtime::Session& session, int program);

}  // namespace fusor::tools
