#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// While one lives, the results of library calls are kept: a reference that
// makes the calls which a device has made, on equal operands, gets them for
// little. One at a time, of one thread.
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

// The interpreter's results in typed mode.
std::vector<ir::Tensor> InterpretCall(
    const ir::Node& call, std::span<const ir::Tensor* const> operands);

// Does what the vendor library would, by the interpreter's rules in typed mode.
// `args`: operands, results and the workspace, where there is one: it is filled
// with garbage.
void RunLibraryCall(const codegen::LibraryCall& call, void* const* args);

}  // namespace fusor::test
