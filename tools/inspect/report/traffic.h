#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan/plan.h"

namespace fusor::inspect {

// Estimates of the bytes between memory and the device, as in a roofline model:
// no value stays in a cache between two accesses.
//
// For a kernel: in each phase, every loop reads each loaded element once and
// writes each stored element once. A normalisation that reads its operand for
// the statistics and again to apply them therefore reads it twice.
int64_t TrafficBytes(const codegen::Kernel& kernel);
// Returns the bytes of one phase, per buffer of the kernel.
std::vector<int64_t> TrafficByBuffer(const codegen::Kernel& kernel,
                                     const codegen::Phase& phase);

// For a call: operands and results, once each. For a strided convolution,
// counts only the rows and columns of the image that its windows touch.
int64_t TrafficBytes(const codegen::LibraryCall& call);

// For one step of the plan, and for all steps. Excludes collectives, whose
// bytes cross the network.
int64_t TrafficBytes(const codegen::Plan& plan, const codegen::Step& step);
int64_t TrafficBytes(const codegen::Plan& plan);

}  // namespace fusor::inspect
