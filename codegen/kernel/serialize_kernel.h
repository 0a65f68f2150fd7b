#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

namespace proto {
class KernelProto;
}  // namespace proto

// Serialize a kernel for SerializePlan and ParsePlan. ReadKernel throws kGraph
// on enumerators or sizes out of range. It does not call Verify.
void WriteKernel(const Kernel& kernel, proto::KernelProto& out);
Kernel ReadKernel(const proto::KernelProto& in);

}  // namespace fusor::codegen
