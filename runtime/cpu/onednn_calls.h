#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/plan.h"
#include "ir/graph.h"
#include "ir/target.h"
#include "runtime/backend.h"

namespace fusor::cpu {

// A library op of the IR, ready to run on the calling thread's OpenMP team.
// Arguments as codegen::Step describes: operands, results, workspace.
class LibraryExecutable : public runtime::Executable {
 public:
  // Makes it ready to run: the expensive part of its creation.
  virtual void Load() = 0;
  // One launch at a time, after Load. No allocation of ours.
  virtual void Run(void* const* args) = 0;
  virtual const std::string& implementation() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

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
