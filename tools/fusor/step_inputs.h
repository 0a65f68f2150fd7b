#pragma once

#include "runtime/data/batch_source.h"
#include "runtime/debug/compare.h"

namespace fusor::tools {

// What a training step of the model reads besides its state, by input name.
// Data inputs of a module that are no images and labels get random values.
runtime::InputBytes InputsOf(const ir::Graph& model,
                             const runtime::Batch& batch, double lr);

}  // namespace fusor::tools
