#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Bytes between memory and the device, as a roofline counts them: nothing that
// was read or written stays in a cache until it is read again.
//
// Of a kernel: in each of its phases, every loop reads what it loads once and
// writes what it stores once, so that a normalisation, which reads its operand
// for the statistics and again to apply them, reads it twice.
int64_t TrafficBytes(const Kernel& kernel);
// The same of one of its phases, of each of the kernel's buffers.
std::vector<int64_t> TrafficByBuffer(const Kernel& kernel, const Phase& phase);

// Of a call: its operands and results, each once. Of the images that a
// convolution strides over, such rows and columns as it touches.
int64_t TrafficBytes(const LibraryCall& call);

// Of one step of the plan, and of all but collectives, whose bytes go
// elsewhere.
int64_t TrafficBytes(const Plan& plan, const Step& step);
int64_t TrafficBytes(const Plan& plan);

}  // namespace fusor::codegen
