#pragma once

#include "runtime/data/batch_source.h"
#include "runtime/debug/compare.h"

namespace fusor::tools {

// What a training step reads besides its state, by input name.
runtime::InputBytes InputsOf(const runtime::Batch& batch, double lr);

}  // namespace fusor::tools
