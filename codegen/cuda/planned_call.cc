#include "codegen/cuda/planned_call.h"

namespace fusor::cuda {

using codegen::LibraryCall;

bool IsMemoryCopy(const LibraryCall& call) {
  return call.op == ir::OpKind::kCopy && call.operands[0] == call.results[0];
}

bool PrepareMemoryCopy(LibraryCall& call) {
  if (!IsMemoryCopy(call)) return false;
  call.implementation = "memcpy";
  return true;
}

}  // namespace fusor::cuda
