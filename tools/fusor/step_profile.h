#pragma once

#include <vector>

#include "runtime/session.h"
#include "tools/fusor/flags.h"

namespace fusor::tools {

// Milliseconds of each step of the plan, on synthetic data. They are real
// steps of the program, whose state is initialized first.
std::vector<double> ProfileSynthetic(const ModelFlags& model,
                                     runtime::Session& session, int program);

}  // namespace fusor::tools
