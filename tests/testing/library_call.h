#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// Caches the results of library calls during its lifetime. A reference that
// repeats a device's calls on equal operands need not compute them again. Only
// one may exist at a time, used by one thread.
class CallMemory {
 public:
  CallMemory();
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

 private:
  friend std::vector<ir::Tensor> InterpretCall(
      const ir::Node& call, std::span<const ir::Tensor* const> operands);
  std::unordered_map<uint64_t, std::vector<ir::Tensor>> results_;
};

// Returns the interpreter's results in typed mode, from the CallMemory if there
// is one.
std::vector<ir::Tensor> InterpretCall(
    const ir::Node& call, std::span<const ir::Tensor* const> operands);

// Returns the call of a matmul of `graph` that also adds a bias of the given
// dtype, if any, and takes the ReLU.
codegen::LibraryCall EpilogueCall(ir::Graph& graph, const ir::Node& matmul,
                                  std::optional<ir::DType> bias, bool relu);

// Executes a library call with the interpreter in typed mode. `args` are the
// operands, the results and, if the call has one, the workspace. Overwrites the
// workspace with garbage, as a vendor library may.
void RunLibraryCall(const codegen::LibraryCall& call, void* const* args);

}  // namespace fusor::test
