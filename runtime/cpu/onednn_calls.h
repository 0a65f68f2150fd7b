#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Returns an executable for the call: fusor's own Winograd in bf16
// (winograd_calls.h), im2col (im2col_call.h) and max_pool, else oneDNN if it
// supports the op and types, else the interpreter ("reference": any op, any
// dtype, slow). Throws kGraph if algorithm "winograd" does not exist for the
// call, or if images are too large for oneDNN.
std::unique_ptr<LibraryExecutable> MakeLibraryExecutable(
    const codegen::LibraryCall& call);

// Returns the candidates for a convolution or pooling node, best first; empty
// for other ops and unsupported types. Throws kGraph if images are too large
// for oneDNN. `target.channel_block()` is the block size of activations.
std::vector<ir::LibraryCandidate> LibraryCandidates(const ir::Node& node,
                                                    const ir::Target& target);

std::string OneDnnVersion();  // "oneDNN 2.6.3"

}  // namespace fusor::cpu
