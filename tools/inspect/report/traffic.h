#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::codegen {

// Estimates of the bytes between memory and the device, as in a roofline model:
// no value stays in a cache between two accesses.
//
// For a kernel: in each phase, every loop reads each loaded element once and
// writes each stored element once. A normalisation that reads its operand for
// the statistics and again to apply them therefore reads it twice.
int64_t TrafficBytes(const Kernel& kernel);
// Returns the bytes of one phase, per buffer of the kernel.
std::vector<int64_t> TrafficByBuffer(const Kernel& kernel, const Phase& phase);

// For a call: operands and results, once each. Of the image that a strided
// convolution reads, only the rows and columns that its windows touch.
int64_t TrafficBytes(const LibraryCall& call);

// For one step of the plan, and for all steps. Excludes collectives, whose
// bytes cross the network.
int64_t TrafficBytes(const Plan& plan, const Step& step);
int64_t TrafficBytes(const Plan& plan);

}  // namespace fusor::codegen
