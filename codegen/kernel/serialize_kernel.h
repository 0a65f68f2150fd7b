#pragma once

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

namespace proto {
class KernelProto;
}  // namespace proto

// The kernels' part of SerializePlan and ParsePlan. Reading throws kGraph on
// numbers outside their enumeration; Verify is up to the caller.
void WriteKernel(const Kernel& kernel, proto::KernelProto& out);
Kernel ReadKernel(const proto::KernelProto& in);

}  // namespace fusor::codegen
