#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// By oneDNN where it has the op for these types, or by loops of ours: Winograd
// in bf16 (winograd_calls.h), im2col (im2col_call.h) and max_pool, else by the
// interpreter
// ("reference": any op, any dtype, slow). Throws kGraph for algorithm
// "winograd" where there is none, and for images too large for oneDNN.
std::unique_ptr<LibraryExecutable> MakeLibraryExecutable(
    const codegen::LibraryCall& call);

// The ways in which these can run a convolution or pooling node, best first;
// empty for other ops and types that it lacks. Throws kGraph for images too
// large for oneDNN. `target.channel_block()` decides
// how activations are blocked.
std::vector<ir::LibraryCandidate> LibraryCandidates(const ir::Node& node,
                                                    const ir::Target& target);

std::string OneDnnVersion();  // "oneDNN 2.6.3"

}  // namespace fusor::cpu
